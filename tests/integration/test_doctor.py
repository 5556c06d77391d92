"""`strata doctor`: what a machine lacks is stated, and what is there is not called missing."""

import json
import os
import shutil
import subprocess

import pytest
from strata_program import TIMEOUT, fake_cuda, program, run_strata

USAGE = 2
SUBJECTS = ["CUDA", "NCCL", "CPUs", "bf16 products", "RAM", "swap", "huge pages", "locked memory", "io_uring"]


def findings(*words, before=(), **environment):
    command = [*before, program(), "doctor", "--json", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_states_everything_it_looks_at_with_a_verdict(tmp_path):
    found = findings("--nvme", tmp_path)
    assert set(SUBJECTS) < set(found)
    assert f"drive {tmp_path}" in found and f"space in {tmp_path}" in found
    assert {finding["verdict"] for finding in found.values()} <= {"ok", "slow", "missing"}
    assert all(finding["text"] for finding in found.values())
    # What is not as it should be comes with what to do.
    assert all(finding["advice"] for finding in found.values() if finding["verdict"] != "ok")
    assert list(tmp_path.iterdir()) == []


def test_prints_a_line_for_each_and_its_versions(tmp_path):
    done = run_strata("doctor", "--nvme", tmp_path)
    assert done.code == 0, done.err
    assert done.out.startswith("strata ") and "torch " in done.out.splitlines()[0]
    for subject in SUBJECTS:
        assert f" {subject} " in done.out


def test_without_a_folder_looks_at_this_one(tmp_path):
    done = run_strata("doctor", cwd=tmp_path)
    assert f"drive {tmp_path}" in done.out


def test_says_why_there_is_no_cuda_and_no_nccl(tmp_path):
    nothing = str(tmp_path / "none.so")
    found = findings(STRATA_CUDA_PLUGIN=nothing)
    assert found["CUDA"]["verdict"] == "missing" and not found["CUDA"]["facts"]["plugin"]
    assert found["GPU"]["verdict"] == "missing" and nothing in found["GPU"]["text"]
    assert found["NCCL"]["verdict"] == "missing" and not found["NCCL"]["facts"]["built_in"]


def test_describes_a_gpu():
    found = findings(STRATA_CUDA_PLUGIN=fake_cuda())
    assert found["CUDA"]["verdict"] == "ok" and found["CUDA"]["facts"]["runtime"]
    gpu = found["GPU 0"]
    assert gpu["verdict"] == "ok" and gpu["facts"]["name"] in gpu["text"]
    assert 0 < gpu["facts"]["free_bytes"] <= gpu["facts"]["total_bytes"] and "NUMA node" in gpu["text"]
    assert found["NCCL"]["verdict"] == "missing"


def test_a_library_that_is_not_the_plug_in_is_said_to_be_none(tmp_path):
    library = "libc.so.6"
    found = findings(STRATA_CUDA_PLUGIN=library)
    assert f"{library} is not the CUDA plug-in" in found["GPU"]["text"]
    assert not found["CUDA"]["facts"]["plugin"] and not found["NCCL"]["facts"]["built_in"]


@pytest.mark.parametrize("error, said", [("EPERM", "forbidden"), ("ENOSYS", "no io_uring"), ("ENOMEM", "no memory")])
def test_says_that_the_kernel_gives_no_io_uring(error, said):
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("strace is not installed")
    inject = f"inject=io_uring_setup:error={error}"
    found = findings(before=[strace, "-f", "-o", "/dev/null", "-e", "trace=io_uring_setup", "-e", inject])["io_uring"]
    assert found["verdict"] == "missing" and not found["facts"]["usable"]
    assert said in found["text"] and "threads" in found["advice"]


def test_says_that_little_memory_may_be_locked():
    tools = [shutil.which("setpriv"), shutil.which("prlimit")]
    if not all(tools):
        pytest.skip("setpriv or prlimit is not installed")
    drop = [tools[0], "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"] if os.getuid() == 0 else []
    found = findings(before=[*drop, tools[1], "--memlock=65536:65536"])["locked memory"]
    assert found["verdict"] == "slow" and found["facts"] == {"exempt": False, "limit_bytes": 65536}
    assert "ulimit -l" in found["advice"]


def test_says_that_the_processor_is_used_without_vectors():
    found = findings(STRATA_ISA="scalar")["CPUs"]
    assert found["verdict"] == "slow" and found["facts"]["isa"] == "scalar"


@pytest.mark.parametrize(
    "words, message",
    [(("--nvme", "missing"), "missing does not exist"), (("--nvme", "file"), "file is not a folder"), (("gpu",), "gpu")],
)
def test_refuses_bad_input_with_one_line(tmp_path, words, message):
    (tmp_path / "file").write_text("x")
    done = run_strata("doctor", *words, cwd=tmp_path)
    assert done.code == USAGE and message in done.err
    assert done.err.count("\n") == 1 and done.out == ""
