"""Folders that the C++ side read and wrote again, judged by safetensors and transformers."""

import json
import os
import subprocess

import pytest
import torch
from safetensors import safe_open
from tiny_models import KINDS, make_tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

PROGRAM = os.environ.get("STRATA_REWRITE_FOLDER")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="STRATA_REWRITE_FOLDER names no rewrite_folder (ctest sets it)")
ROPE_TYPES = ["default", "linear", "llama3"]


def rewrite(source, target, max_shard_bytes=5_000_000_000):
    target.mkdir()
    command = [PROGRAM, str(source), str(target), str(max_shard_bytes)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def stored(folder):
    """{name: tensor} of every safetensors file of a folder."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            assert opened.metadata()["format"] == "pt"
            found.update({name: opened.get_tensor(name) for name in opened.keys()})
    return found


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rewritten_model_loads_in_transformers_with_the_same_weights(kind, tied, tmp_path):
    model = make_tiny(kind, tmp_path / "in", tied=tied, dtype="bfloat16", with_tokenizer=True)

    rewrite(tmp_path / "in", tmp_path / "out")

    assert_same(stored(tmp_path / "in"), stored(tmp_path / "out"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert loaded.dtype == torch.bfloat16
    assert_same(dict(model.state_dict()), dict(loaded.state_dict()))
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("The text")["input_ids"]


def test_shards_and_index_load_in_transformers(tmp_path):
    model = make_tiny("llama", tmp_path / "in", max_shard_size="200KB")
    assert len(list((tmp_path / "in").glob("*.safetensors"))) > 1

    rewrite(tmp_path / "in", tmp_path / "out", 150_000)

    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    assert_same(stored(tmp_path / "in"), stored(tmp_path / "out"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert_same(dict(model.state_dict()), dict(loaded.state_dict()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_config_is_understood_as_transformers_does(kind, tmp_path):
    config = make_tiny(kind, tmp_path / "in").config

    understood = rewrite(tmp_path / "in", tmp_path / "out")

    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        assert understood[key] == getattr(config, key)
    for key in ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"):
        assert understood[key] == getattr(config, key)
    assert understood["head_dim"] == getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    rope = config.rope_parameters
    assert understood["rope_theta"] == rope["rope_theta"]
    assert ROPE_TYPES[understood["rope_type"]] == rope["rope_type"]
    assert understood["rope_factor"] == rope.get("factor", 1.0)
    window = getattr(config, "sliding_window", None) or 0
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    assert understood["sliding_window"] == [window if kind == "sliding_attention" else 0 for kind in layer_types]
    assert understood["eos_token_ids"] == [config.eos_token_id]
