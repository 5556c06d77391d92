"""The benches that scripts drive answer as the scripts expect.

Run by ctest, or by hand: STRATA_BIN=build/bin/strata python -m pytest tests/integration/test_bench.py
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from strata_program import TIMEOUT, fake_cuda, program, run_strata

ROOT = Path(__file__).resolve().parents[2]
SHAPE = {"hidden": 128, "inner": 384, "layers": 2, "heads": 4, "kv-heads": 1, "vocab": 8192}
# The embedding once: the head is tied to it.
NUMEL = 8192 * 128 + 2 * (2 * 128 * 128 + 2 * 128 * 32 + 3 * 128 * 384 + 2 * 128) + 128


@pytest.mark.parametrize("home", ["compute", "host", "nvme"])
def test_a_step_on_request_is_taken_for_each_line(tmp_path, home):
    words = [word for key, value in SHAPE.items() for word in ("--" + key, str(value))]
    command = [program(), "bench", "step", "--on-request", home, "--dir", tmp_path, "--tokens", "32", *words]
    # Fewer pages than the 20 MiB of states, so that on NVMe every step moves some.
    run = subprocess.run([*map(str, command), "--pages", "8MiB"], input="step\nstep\n", capture_output=True, text=True,
                         timeout=TIMEOUT)

    assert run.returncode == 0, run.stderr
    ready, *steps = map(json.loads, run.stdout.splitlines())
    assert ready["parameters"] == NUMEL and ready["compute"] in ("fp32", "bf16")
    assert len(steps) == 2
    # Two updates lie between: each request takes two steps on the same batch.
    assert 8 < steps[1]["loss"] < steps[0]["loss"] < 10
    for step in steps:
        assert 0 < step["forward"] + step["backward"] <= step["seconds"]
        assert (step["nvme_read_bytes"] > 0) == (home == "nvme")
        assert (step["nvme_written_bytes"] > 0) == (home == "nvme")
    assert list(tmp_path.iterdir()) == []


def test_several_ranks_say_what_each_holds_and_sends(tmp_path):
    words = [word for key, value in SHAPE.items() for word in ("--" + key, str(value))]
    result = run_strata("bench", "step", "--nproc", "2", "--dir", tmp_path, "--tokens", "32", "--rounds", "1", *words, "--json")

    assert result.code == 0, result.err
    measured = json.loads(result.out)
    assert measured["ranks"] == 2 and measured["zero_stage"] == 3 and measured["tokens"] == 64
    for rank in measured["per_rank"]:
        assert rank["sent"] == measured["planned"]["sent"] and rank["sent"]["all"] > 0
        assert rank["states_bytes"] == measured["published"]["states_bytes"]
        assert rank["held"]["nvme"] > 0 and rank["peak_rss_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_configured_step_of_several_ranks_takes_its_stage_from_the_file(tiny, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps({
        "model_name_or_path": str(tiny("llama")), "max_seq_length": 32, "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2, "strata": {
            "zero_stage": 2, "budgets": {"device": "64MiB", "host": "64MiB"},
            "placement": {"param": "host", "grad": "host", "optimizer": "host"}}}))
    result = run_strata("bench", "step", "--nproc=2", "--config", config, "--rounds", "1", "--json")

    assert result.code == 0, result.err
    measured = json.loads(result.out)
    assert measured["zero_stage"] == 2 and measured["micro_batches"] == 2
    assert measured["per_rank"][1]["sent"] == measured["planned"]["sent"]


def test_a_configured_step_alone_compares_with_nothing(tiny, tmp_path):
    words = ["--config", tmp_path / "run.yaml", "--rounds", "2", "--alone", "--json"]
    (tmp_path / "run.yaml").write_text(json.dumps({
        "model_name_or_path": str(tiny("llama")), "max_seq_length": 32, "per_device_train_batch_size": 1, "strata": {
            "budgets": {"device": "64MiB", "host": "64MiB"}, "nvme": {"paths": [str(tmp_path)]},
            "placement": {"param": "nvme", "grad": "host", "optimizer": "nvme"}}}))
    result = run_strata("bench", "step", *words)
    assert result.code == 0, result.err
    measured = json.loads(result.out)
    assert measured["rounds"] == 2 and len(measured["losses"]) == 2
    assert measured["losses"][1] < measured["losses"][0] < 8 and "nvme_read_bytes" in measured["step"]
    assert run_strata("bench", "step", *words, "--hide").code == 2


@pytest.mark.parametrize("compute", ["bf16", "fp32"])
def test_the_type_of_products_may_be_fixed(tmp_path, compute):
    words = [word for key, value in SHAPE.items() for word in ("--" + key, str(value))]
    command = [program(), "bench", "step", "--on-request", "host", "--dir", tmp_path, "--tokens", "32", *words]
    run = subprocess.run([*map(str, command), "--compute", compute], input="", capture_output=True, text=True, timeout=TIMEOUT)

    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["compute"] == compute


def test_ranks_on_request_are_started_by_hand(tmp_path):
    result = run_strata("bench", "step", "--nproc", "2", "--on-request", "host", "--dir", tmp_path)
    assert result.code == 2 and "by hand" in result.err


def test_a_home_that_is_none_is_refused(tmp_path):
    result = run_strata("bench", "step", "--on-request", "cloud", "--dir", tmp_path)
    assert result.code == 2 and "cloud" in result.err


def test_hide_forecasts_for_the_machine_and_the_model_it_is_given(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 8192, "hidden_size": 128,
        "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
        "tie_word_embeddings": True}))
    slow, fast = (json.loads(run_strata("bench", "hide", "--model", tmp_path, "--dram", rate, "--json").out)
                  for rate in ("6", "60"))
    assert slow["parameters"] == fast["parameters"] == NUMEL and slow["forecast"]
    assert slow["rows"][0]["fits"] and slow["rows"][0]["tokens"] > fast["rows"][0]["tokens"]


def test_the_link_of_the_host_device_is_measured_beside_memcpy():
    result = run_strata("bench", "link", "--device", "host", "--sizes", "4KiB,1MiB", "--bytes", "1MiB", "--rounds", "2", "--json")
    assert result.code == 0, result.err
    rows = json.loads(result.out)["rows"]
    assert [(row["bytes"], row["direction"]) for row in rows] == [
        (size, way) for size in (4096, 1 << 20) for way in ("to device", "from device", "both")]
    assert all(row["over_bare"]["worst"] > 0 for row in rows)


def test_a_gpu_is_measured_beside_bare_copies_and_copies_of_its_memory(monkeypatch):
    monkeypatch.setenv("STRATA_CUDA_PLUGIN", fake_cuda())
    link = run_strata("bench", "link", "--sizes", "4KiB,1MiB", "--bytes", "1MiB", "--rounds", "2", "--json")
    assert link.code == 0, link.err
    link = json.loads(link.out)
    assert link["device"] == "cuda" and link["gpu"]["name"] and len(link["rows"]) == 6
    states = ["fp32", "remainder", "bf16", "8bit", "remainder+bf16", "remainder+8bit"]
    adam = run_strata("bench", "adam", "--device", "cuda", "--states", ",".join(states), "--numel", "5000", "--rounds", "2", "--json")
    assert adam.code == 0, adam.err
    adam = json.loads(adam.out)
    assert set(adam["states"]) == set(states) and adam["numel"] == 5120
    assert all(row["over_copy"]["worst"] > 0 and row["bytes_per_second"]["median"] > 0 for row in adam["states"].values())


@pytest.mark.parametrize("bench", ["link", "adam"])
def test_a_gpu_that_is_not_there_is_an_error_of_the_device(tmp_path, monkeypatch, bench):
    monkeypatch.setenv("STRATA_CUDA_PLUGIN", str(tmp_path / "none.so"))
    result = run_strata("bench", bench, "--device", "cuda", "--json")
    assert result.code == 6 and result.out == ""
    assert "no CUDA device" in result.err and "none.so" in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("words, said", [(("--sizes", "0"), "one byte"), (("--device", "tpu"), "tpu"), (("--rounds", "0"), "rounds")])
def test_the_link_bench_refuses_bad_input(words, said):
    result = run_strata("bench", "link", *words)
    assert result.code == 2 and said in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("script", ["step_vs_deepspeed.py", "ranks_vs_peers.py"])
def test_a_comparison_says_why_it_is_skipped(tmp_path, script):
    """Without the packages or the program it prints a reason and succeeds, as `make bench` relies on."""
    command = [sys.executable, "-S", ROOT / "bench" / script, "--dir", tmp_path, "--strata", tmp_path / "none"]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ})
    assert run.returncode == 0, run.stderr
    assert "is not installed" in json.loads(run.stdout)["skipped"]


@pytest.mark.parametrize(
    "changes, code, said",
    [({"SHAPE": "13b"}, 2, "13b"), ({"STATES": "int4"}, 2, "int4"), ({"BUDGET": "99999999"}, 3, "too little memory")],
)
def test_the_capacity_script_refuses_before_it_writes(tmp_path, changes, code, said):
    environment = {**os.environ, "DIR": str(tmp_path), "SHAPE": "tiny", "STRATA": program(), **changes}
    run = subprocess.run([ROOT / "bench" / "capacity_7b.sh"], capture_output=True, text=True, timeout=TIMEOUT,
                         env=environment)
    assert run.returncode == code and said in run.stderr, run.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_capacity_script_trains_measures_and_cleans_up(tmp_path):
    environment = {**os.environ, "DIR": str(tmp_path), "SHAPE": "tiny", "STATES": "fp32", "TOKENS": "32",
                   "BUDGET": "64", "STRATA": program()}
    run = subprocess.run([ROOT / "bench" / "capacity_7b.sh"], capture_output=True, text=True, timeout=TIMEOUT,
                         env=environment)
    assert run.returncode == 0, run.stderr
    said = [line for line in run.stdout.splitlines() if line.startswith("capacity:")]
    assert sum("step 2:" in line for line in said) == 1 and "peak resident" in said[-1], run.stdout
    assert list(tmp_path.iterdir()) == []
