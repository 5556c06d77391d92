"""tools/device_check.sh: what it prints and how it ends, without a GPU, over the fake runtime, and when parts fail."""

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "device_check.sh"
BUILD = Path(os.environ["STRATA_BUILD"])
PARTS = ["facts", "build", "contract", "kernels", "nccl", "sanitizer", "engine", "bench-adam", "bench-link", "bench-step",
         "torch-adam", "seven-b"]
USAGE, NO_GPU = 2, 6


def check(*words, **environment):
    return subprocess.run([SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=600,
                          env={**os.environ, **{key: str(value) for key, value in environment.items()}})


def results_of(done):
    return json.loads(done.stdout)["parts"]


def scripted_build(folder, answer):
    """A build folder whose program finds a GPU and answers `strata bench` with the shell text `answer`."""
    finding = {"subject": "GPU 0", "verdict": "ok", "text": "", "facts": {}}
    program = folder / "bin" / "strata"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nif [ $1 = doctor ]; then echo '{json.dumps({'findings': [finding]})}'; exit; fi\n{answer}\n")
    program.chmod(0o755)
    return folder


def test_lists_its_parts_and_refuses_others():
    listed = check("--list")
    assert listed.returncode == 0 and [line.split()[0] for line in listed.stdout.splitlines()] == PARTS
    unknown = check("facts", "warp")
    assert unknown.returncode == USAGE and "warp" in unknown.stderr and unknown.stdout == ""


def test_without_a_gpu_facts_fails_and_the_others_say_why_they_are_skipped(tmp_path):
    parts = [part for part in PARTS if part != "build"]
    done = check(*parts, STRATA_CUDA_PLUGIN=tmp_path / "none.so")
    assert done.returncode == NO_GPU, done.stderr
    results = results_of(done)
    assert list(results) == parts
    assert results["facts"]["status"] == "failed" and results["facts"]["reason"].startswith("no GPU: ")
    assert results["facts"]["figures"]["findings"]["io_uring"]["text"]
    for part in parts[1:]:
        assert results[part]["status"] == "skipped" and "none.so" in results[part]["reason"]
    assert json.loads(done.stdout)["ok"] is False


def test_without_a_build_it_says_so(tmp_path):
    done = check("facts", "build", STRATA_BUILD=tmp_path)
    assert done.returncode == NO_GPU
    assert results_of(done)["build"]["status"] == "skipped" and str(tmp_path) in results_of(done)["build"]["reason"]


@pytest.mark.skipif("STRATA_CUDA_FAKE_PLUGIN" not in os.environ, reason="the fake CUDA plug-in is not built")
def test_over_the_fake_runtime_the_parts_run_to_their_end(tmp_path):
    parts = ["facts", "kernels", "engine", "bench-adam", "bench-link", "bench-step", "seven-b"]
    done = check("--tiny", *parts, "nccl", STRATA_CUDA_PLUGIN=os.environ["STRATA_CUDA_FAKE_PLUGIN"], STRATA_CHECK_DIR=tmp_path)
    assert done.returncode == 0, done.stderr
    results = results_of(done)
    assert {part: results[part]["status"] for part in parts} == dict.fromkeys(parts, "passed")
    assert results["nccl"]["status"] == "skipped" and "without NCCL" in results["nccl"]["reason"]
    figures = {part: results[part]["figures"] for part in parts}
    assert figures["kernels"]["ran"] > 30 and figures["kernels"]["failed"] == []
    assert figures["engine"]["equal"] and len(figures["engine"]["losses"]) == 3 and len(figures["engine"]["train"]) == 4
    assert figures["bench-adam"]["remainder+8bit"]["over_copy"] > 0
    assert {row["direction"] for row in figures["bench-link"]["rows"]} == {"to device", "from device", "both"}
    assert figures["bench-step"]["bits_equal"]
    assert figures["seven-b"]["step_seconds"] > 0 and len(figures["seven-b"]["losses"]) == 3
    assert list(tmp_path.iterdir()) == []


def adam_answer(ratio):
    median = {"median": 1.0}
    row = {"params_per_second": median, "bytes_per_second": median, "copy_bytes_per_second": median,
           "over_copy": {"median": ratio}, "over_memory": None}
    return f"echo '{json.dumps({'states': {'fp32': row}, 'bar': 0.9})}'"


@pytest.mark.parametrize("ratio, code", [(0.95, 0), (0.85, 1)])
def test_a_bar_that_is_missed_fails_the_part(tmp_path, ratio, code):
    done = check("bench-adam", STRATA_BUILD=scripted_build(tmp_path, adam_answer(ratio)))
    assert done.returncode == code
    result = results_of(done)["bench-adam"]
    assert result["status"] == ("failed" if code else "passed")
    assert ("0.850, not 0.9" in result["reason"]) == (code == 1)
    # The figures come in any case.
    assert result["figures"]["fp32"]["over_copy"] == ratio


def test_a_part_that_fails_leaves_the_others_alone(tmp_path):
    done = check("bench-link", "sanitizer", "facts", STRATA_BUILD=scripted_build(tmp_path, "exit 5"))
    assert done.returncode == 1
    results = results_of(done)
    assert results["bench-link"]["status"] == "failed" and "exit code 5" in results["bench-link"]["reason"]
    assert results["sanitizer"]["status"] == "skipped" and results["facts"]["status"] == "passed"


def test_a_part_ends_at_its_time_limit_and_later_ones_are_skipped(tmp_path):
    done = check("bench-adam", "bench-link", "--seconds", "6", STRATA_BUILD=scripted_build(tmp_path, "exec sleep 500"))
    assert done.returncode == 1
    results = results_of(done)
    assert "time limit" in results["bench-adam"]["reason"]
    assert results["bench-link"]["status"] == "skipped" and "--seconds" in results["bench-link"]["reason"]


@pytest.mark.skipif(not (BUILD / "lib" / "libstrata_cuda.so").exists(), reason="the CUDA plug-in is not built")
def test_a_packed_folder_runs_in_place_of_the_build(tmp_path):
    packed = check("--pack", tmp_path)
    assert packed.returncode == 0, packed.stderr
    done = check("facts", STRATA_BUILD=tmp_path)
    assert done.returncode in (0, NO_GPU), done.stderr
    assert results_of(done)["facts"]["figures"]["findings"]["CUDA"]["facts"]["plugin"]


def test_a_build_without_the_plug_in_is_not_packed(tmp_path):
    done = check("--pack", tmp_path / "packed", STRATA_BUILD=scripted_build(tmp_path, ""))
    assert done.returncode == 1 and "no CUDA plug-in" in done.stderr
