"""`strata init` makes a folder that transformers loads, in little memory, and says no politely.

Run by ctest, or by hand: STRATA_BIN=build/bin/strata python -m pytest tests/integration/test_init.py
"""

import json
import signal
import subprocess
import sys
import time

import pytest
from strata_program import TIMEOUT, homes, program, run_strata, tensors_of, train, write_tokens

USAGE, DOES_NOT_FIT, BAD_DATA = 2, 3, 4
MIB = 1 << 20


@pytest.fixture
def config(tmp_path):
    """config(kind, **keys of the configuration): a config.json under another name."""

    def write(kind="llama", **overrides):
        from tiny_models import make_config

        path = tmp_path / f"{kind}.json"
        make_config(kind, **{"architectures": None, **overrides}).to_json_file(path, use_diff=False)
        return path

    return write


def init(config, out, *words, expect=0):
    result = run_strata("init", "--config", config, "--out", out, *words)
    assert result.code == expect, f"exit code {result.code}, expected {expect}\n{result.err}"
    return result


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_the_folder(config, tmp_path, kind, tied):
    import torch
    from transformers import AutoModelForCausalLM

    result = init(config(kind, tie_word_embeddings=tied), tmp_path / "out", "--seed", "5")
    model, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype="auto", output_loading_info=True
    )

    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert model.dtype == torch.bfloat16
    assert str(model.num_parameters()) in result.out and "no tokenizer" in result.out
    for name, parameter in model.named_parameters():
        values = parameter.detach().float()
        if name.endswith("norm.weight"):
            assert torch.all(values == 1), name
        elif name.endswith("bias"):
            assert torch.all(values == 0), name
        else:  # four standard errors
            assert abs(values.std() - 0.02) < 4 * 0.02 / (2 * values.numel()) ** 0.5, name
            assert abs(values.mean()) < 4 * 0.02 / values.numel() ** 0.5, name
    logits = model(torch.tensor([[1, 2, 3]])).logits
    assert torch.isfinite(logits).all() and logits.std() > 0


def test_shards_hold_what_one_file_holds(config, tmp_path):
    import torch

    init(config(), tmp_path / "one", "--dtype", "fp32")
    init(config(), tmp_path / "many", "--dtype", "fp32", "--shard-size", "100KB")

    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 3
    many = {name: tensor for file in files for name, tensor in tensors_of(tmp_path / "many" / file).items()}
    one = tensors_of(tmp_path / "one" / "model.safetensors")
    assert many.keys() == one.keys() and all(torch.equal(many[name], one[name]) for name in one)
    assert json.loads((tmp_path / "one" / "config.json").read_text())["dtype"] == "float32"


def test_training_starts_from_it(config, tmp_path):
    init(config(), tmp_path / "model")
    write_tokens(tmp_path / "data.tok", (9, 31))
    run = train(tmp_path / "model", tmp_path / "data.tok", tmp_path / "out", **homes("host", "host", "host"))
    assert 6 < run.metrics[0]["loss"] < 8  # ln 1003 = 6.9 for a model that knows nothing


# A process of its own between this one and the program: the kernel lets a program begin with the peak of who started it.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def peak_resident_bytes(config, out):
    command = [program(), "init", "--config", config, "--out", out]
    run = subprocess.run([sys.executable, "-c", MEASURE, *map(str, command)], capture_output=True, text=True,
                         timeout=TIMEOUT)
    assert run.returncode == 0, run.stderr
    return int(run.stdout) * 1024


def test_memory_does_not_grow_with_the_model(config, tmp_path):
    small = peak_resident_bytes(config(), tmp_path / "small")
    large = peak_resident_bytes(
        config(hidden_size=1024, intermediate_size=4096, vocab_size=16384), tmp_path / "large"
    )

    bytes_written = (tmp_path / "large" / "model.safetensors").stat().st_size
    print(f"peak {small / MIB:.0f} and {large / MIB:.0f} MiB; the larger model has {bytes_written / MIB:.0f} MiB")
    assert bytes_written > 140 * MIB
    assert large < small + 32 * MIB


def test_refuses_a_folder_that_holds_something(config, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    result = init(config(), tmp_path / "out", expect=USAGE)
    assert str(tmp_path / "out") in result.err and "not an empty folder" in result.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_refuses_what_the_disk_cannot_hold(config, tmp_path):
    path = config(hidden_size=65536, intermediate_size=65536, num_hidden_layers=20000)
    result = init(path, tmp_path / "out", expect=DOES_NOT_FIT)
    assert "need" in result.err and "TiB" in result.err and "are free" in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["--dtype", "fp16"], USAGE, "fp16"),
        (["--seed", "-1"], USAGE, "seed"),
        (["--shard-size", "0"], USAGE, "shard-size"),
        (["--shard-size", "huge"], USAGE, "huge"),
        (["--sed", "1"], USAGE, "--sed"),
    ],
)
def test_refuses_bad_options(config, tmp_path, words, code, said):
    result = init(config(), tmp_path / "out", *words, expect=code)
    assert result.err.count("strata: error: ") == 1 and said in result.err
    assert not (tmp_path / "out").exists()


def test_names_a_config_that_is_not_one(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("{")
    assert "broken.json" in init(path, tmp_path / "out", expect=BAD_DATA).err
    assert "nowhere.json" in init(tmp_path / "nowhere.json", tmp_path / "out", expect=BAD_DATA).err


def test_a_signal_ends_it_and_leaves_nothing(config, tmp_path):
    path = config(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, vocab_size=32000, num_attention_heads=32)
    run = subprocess.Popen([program(), "init", "--config", path, "--out", tmp_path / "out"], stderr=subprocess.PIPE)
    deadline = time.monotonic() + TIMEOUT
    while not list(tmp_path.glob("out.tmp-*/*.safetensors")):  # it is writing
        if run.poll() is not None and run.returncode == DOES_NOT_FIT:
            pytest.skip("no room for the model on this disk")
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=TIMEOUT)
    assert run.returncode == 128 + signal.SIGINT
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name]


def test_help_names_the_options():
    result = run_strata("init", "--help")
    assert result.code == 0
    for option in ("--config", "--out", "--seed", "--dtype", "--shard-size"):
        assert option in result.out
    assert "strata init" in run_strata("--help").out
