"""Tiny models: what the real library wrote is really what the tests need."""

import json

import pytest
from safetensors import safe_open
from tiny_models import KINDS, make_tiny


def tensors_of(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}


@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_biases_are_neither_ones_nor_zeros(kind, tmp_path):
    make_tiny(kind, tmp_path)

    vectors = {name: tensor for name, tensor in tensors_of(tmp_path).items() if tensor.dim() == 1}
    assert vectors
    assert all(tensor.std() > 0.05 for tensor in vectors.values())


def test_each_kind_has_what_tells_it_apart(tmp_path):
    folders = {kind: tmp_path / kind for kind in KINDS}
    for kind, folder in folders.items():
        make_tiny(kind, folder)
    configs = {kind: json.loads((folder / "config.json").read_text()) for kind, folder in folders.items()}

    assert configs["llama"]["rope_parameters"]["rope_type"] == "llama3"
    assert configs["mistral"]["sliding_window"] == 7
    assert "sliding_attention" in configs["qwen2"]["layer_types"]
    assert "model.layers.0.self_attn.q_proj.bias" in tensors_of(folders["qwen2"])
    assert "model.layers.0.self_attn.q_norm.weight" in tensors_of(folders["qwen3"])
    assert configs["qwen3"]["head_dim"] * configs["qwen3"]["num_attention_heads"] != configs["qwen3"]["hidden_size"]


def test_a_tied_model_has_no_lm_head_in_its_file(tmp_path):
    make_tiny("llama", tmp_path / "tied", tied=True)
    make_tiny("llama", tmp_path / "untied")

    assert "lm_head.weight" not in tensors_of(tmp_path / "tied")
    assert "lm_head.weight" in tensors_of(tmp_path / "untied")


def test_the_same_seed_gives_the_same_file(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_tiny("qwen3", tmp_path / name, seed=seed, dtype="bfloat16")
    first, second, third = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")

    assert first == second != third
