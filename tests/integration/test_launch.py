"""Several ranks as people start them: --nproc, torchrun, mpirun, variables set by hand; and what goes wrong then.

Run by ctest, or by hand: STRATA_BIN=build/bin/strata python -m pytest tests/integration/test_launch.py
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from rank_processes import BAD_DATA, COMM_FAILED, USAGE, alive, children_of, environment, free_port, started
from strata_program import homes, program, train_options, words_of, write_tokens

TIMEOUT = 120  # seconds; a guard against hangs, never a measurement


@pytest.fixture
def words(tiny, tmp_path):
    """Words of a small run of `strata train`; options override."""

    def made(**options):
        data = tmp_path / "data.tok"
        if not data.exists():
            write_tokens(data, (9, 31, 12, 26, 18, 40, 3, 22))
        base = train_options(tiny("llama", with_tokenizer=True), data, tmp_path / "out", save_strategy="no") | homes("host", "host", "host")
        return words_of(base | options)

    return made


def run(command, **variables):
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT, env=environment(**variables)
    )


def steps_of(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "loss" in line]


def check_trained(done, out, steps=(1, 2, 3)):
    assert done.returncode == 0, done.stderr
    assert steps_of(out) == list(steps)
    assert done.stdout.count("moved in 3 steps") == 1, "results are printed once"
    assert done.stderr.count("parameters;") == 1, "what rank 0 logs, no other logs"


# --- Each way to start ranks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [["--nproc", "2"], ["--nproc=2"]], ids=["two_words", "one_word"])
def test_nproc(option, words, tmp_path):
    done = run([program(), "train", *option, *words()])
    check_trained(done, tmp_path / "out")
    lines = done.stderr.splitlines()
    assert lines and all(re.match(r"\[rank [01]\] |strata: ", line) for line in lines), done.stderr


def test_nproc_of_one_is_one_process(words, tmp_path):
    done = run([program(), "train", "--nproc", 1, *words()])
    check_trained(done, tmp_path / "out")
    assert "[rank" not in done.stderr


# As `torchrun` does, whose script may name an interpreter of another place.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.mark.parametrize("agent_store", [1, 0], ids=["store_of_the_agent", "store_of_rank_0"])
def test_torchrun(agent_store, words, tmp_path):
    done = run(
        [*TORCHRUN, "--nproc_per_node", 2, "--master_port", free_port(), "--no-python", program(), "train", *words()],
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 - agent_store,
    )
    check_trained(done, tmp_path / "out")


def test_mpirun(words, tmp_path):
    mpirun = shutil.which("mpirun")
    if not mpirun:
        pytest.skip("no mpirun on this machine")
    if os.geteuid() == 0:
        mpirun = [mpirun, "--allow-run-as-root"] if "Open MPI" in run([mpirun, "--version"]).stdout else [mpirun]
    else:
        mpirun = [mpirun]
    done = run([*mpirun, "-np", 2, program(), "train", *words()], MASTER_PORT=free_port())
    check_trained(done, tmp_path / "out")


def variables_by_hand(port, rank, world=2):
    return dict(RANK=rank, WORLD_SIZE=world, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)


# Rank 1 first: it waits for rank 0's store.
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rank_0_first", "rank_1_first"])
def test_variables_set_by_hand_in_two_shells(order, words, tmp_path):
    port = free_port()
    command = [program(), "train", *words()]
    with started(command, **variables_by_hand(port, order[0])) as first:
        with started(command, **variables_by_hand(port, order[1])) as second:
            ends = {order[0]: first.communicate(timeout=TIMEOUT), order[1]: second.communicate(timeout=TIMEOUT)}
            codes = first.returncode, second.returncode
    assert codes == (0, 0), ends
    assert steps_of(tmp_path / "out") == [1, 2, 3]
    assert "moved in 3 steps" in ends[0][0]
    assert ends[1] == ("", ""), "rank 1 has nothing to say"


SLURM = dict(
    SLURM_JOB_ID=os.getpid(), SLURM_STEP_ID=0, SLURM_NTASKS=2, SLURM_TASKS_PER_NODE="2", SLURM_NODEID=0,
    SLURM_NODELIST="node[08-09]",
)


def test_variables_of_srun(words, tmp_path):
    command = [program(), "train", *words()]
    with started(command, **SLURM, SLURM_PROCID=1, SLURM_LOCALID=1) as other:
        done = run(command, **SLURM, SLURM_PROCID=0, SLURM_LOCALID=0)
        _, err = other.communicate(timeout=TIMEOUT)
    check_trained(done, tmp_path / "out")
    assert other.returncode == 0, err


@pytest.mark.parametrize("extra", [{}, dict(SLURM_PROCID=0, ENVIRONMENT="BATCH")], ids=["salloc", "sbatch"])
def test_allocation_without_srun_is_one_process(extra, words, tmp_path):
    job = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    check_trained(run([program(), "train", *words()], **job, **extra), tmp_path / "out")


# --- Environments that cannot be (DI-09, DI-07) --------------------------------------------------------------------

GOOD = dict(RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=29511)
BAD = {
    "world_without_rank": ({"RANK": None}, "RANK is missing"),
    "rank_beyond_world": ({"RANK": 2}, "RANK=2 is not from 0 to 1"),
    "negative_rank": ({"RANK": -1}, "RANK=-1 is not a number"),
    "world_in_words": ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two is not a number"),
    "port_empty": ({"MASTER_PORT": ""}, "MASTER_PORT is empty"),
    "port_too_large": ({"MASTER_PORT": 99999}, "MASTER_PORT=99999 is not from 1 to 65535"),
    "port_in_letters": ({"MASTER_PORT": "abc"}, "MASTER_PORT=abc is not a number"),
    "address_missing": ({"MASTER_ADDR": None}, "MASTER_ADDR is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_environment_that_cannot_be_is_refused(name, words, tmp_path):
    change, expected = BAD[name]
    variables = {key: value for key, value in (GOOD | change).items() if value is not None}
    done = run([program(), "train", *words()], **variables)
    assert done.returncode == USAGE, done.stderr
    assert expected in done.stderr
    assert "needed are RANK, WORLD_SIZE" in done.stderr and "set are" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("nproc", ["0", "-2", "two", ""])
def test_nproc_that_is_no_number_of_ranks_is_refused(nproc, words):
    done = run([program(), "train", "--nproc", nproc, *words()])
    assert done.returncode == USAGE, done.stderr
    assert "--nproc takes a number of ranks" in done.stderr


def test_nproc_inside_a_rank_is_refused(words):
    done = run([program(), "train", "--nproc", 2, *words()], **GOOD)
    assert done.returncode == USAGE, done.stderr
    assert "RANK=0, WORLD_SIZE=2" in done.stderr


def test_configuration_that_is_refused_is_refused_once(words):
    done = run([program(), "train", "--nproc", 3, *words(), "--global-batch-size", 7])
    assert done.returncode == USAGE
    assert done.stderr.count("global_batch_size 7 is not") == 1 and "3 ranks" in done.stderr, done.stderr


def test_global_batch_counts_the_ranks(words, tmp_path):
    check_trained(run([program(), "train", "--nproc", 2, *words(), "--global-batch-size", 4]), tmp_path / "out")


def test_port_in_use_is_named(words):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run([program(), "train", *words()], **variables_by_hand(port, 0))
    assert done.returncode in (USAGE, COMM_FAILED), done.stderr
    assert "127.0.0.1" in done.stderr and str(port) in done.stderr, done.stderr
    assert "MASTER_PORT" in done.stderr


# --- Ranks that are slow, fail or die ------------------------------------------------------------------------------


# DI-06. Rank 0 tokenizes for longer than a collective may take.
def test_slow_preparation_on_rank_zero_runs_into_no_time_out(words, tmp_path):
    text = tmp_path / "large.txt"
    text.write_text("The quick brown fox jumps over the lazy dog, again and again.\n" * 60_000)
    begin = time.monotonic()
    done = run([program(), "train", "--nproc", 2, *words(data=text, max_steps=1), "--strata.comm.timeout", 2])
    took = time.monotonic() - begin
    assert done.returncode == 0, done.stderr
    assert took > 4, f"{took} s is too fast to show anything: a larger text is needed"
    assert steps_of(tmp_path / "out") == [1]


def test_failure_on_rank_zero_ends_the_others_with_its_reason(words, tmp_path):
    done = run([program(), "train", "--nproc", 2, *words(data=tmp_path / "not-there.jsonl")])
    assert done.returncode in (USAGE, BAD_DATA), done.stderr
    assert "[rank 0] strata: error: preparing the data failed" in done.stderr
    assert "[rank 1] strata: error: rank 0 failed first: preparing the data failed" in done.stderr
    assert "strata: error: rank 0 failed first: preparing the data failed" in done.stderr.splitlines()[-1]


@contextmanager
def long_run(words, nproc, tmp_path):
    """A launcher whose ranks are training, and their process numbers."""
    out = tmp_path / "out"
    with started([program(), "train", "--nproc", nproc, *words(max_steps=10_000_000)]) as launcher:
        deadline = time.monotonic() + TIMEOUT
        while not (out / "metrics.jsonl").exists() or not steps_of_open_file(out):
            assert launcher.poll() is None, launcher.communicate()[1]
            assert time.monotonic() < deadline, "no step"
            time.sleep(0.05)
        ranks = children_of(launcher.pid)
        assert sorted(ranks) == list(range(nproc))
        yield launcher, ranks


def steps_of_open_file(out):
    return [line for line in (out / "metrics.jsonl").read_text().splitlines(True) if line.endswith("\n")]


# DI-03.
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_ends_all_and_is_named(victim, words, tmp_path):
    with long_run(words, 2, tmp_path) as (launcher, ranks):
        os.kill(ranks[victim], signal.SIGKILL)
        _, err = launcher.communicate(timeout=TIMEOUT)
    assert launcher.returncode == COMM_FAILED, err
    assert f"strata: rank {victim} was killed by signal 9 (SIGKILL)" in err
    assert f"strata: error: rank {victim} failed first: was killed by signal 9 (SIGKILL)" in err.splitlines()[-1]
    assert not any(map(alive, ranks.values()))


# It answers no signal but SIGKILL, and its connections stay open.
def test_stopped_rank_ends_all_and_is_named(words, tmp_path):
    with long_run(words, 2, tmp_path) as (launcher, ranks):
        os.kill(ranks[1], signal.SIGSTOP)
        _, err = launcher.communicate(timeout=TIMEOUT)
    assert launcher.returncode == COMM_FAILED, err
    assert "strata: error: rank 1 has not answered" in err.splitlines()[-1]
    assert not any(map(alive, ranks.values()))


def test_killed_launcher_takes_its_ranks_along(words, tmp_path):
    with long_run(words, 2, tmp_path) as (launcher, ranks):
        launcher.kill()
        launcher.wait(timeout=TIMEOUT)
        deadline = time.monotonic() + TIMEOUT
        while any(map(alive, ranks.values())):
            assert time.monotonic() < deadline, "an orphan"
            time.sleep(0.01)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"])
def test_stop_signal_stops_all_after_a_step(number, code, words, tmp_path):
    with long_run(words, 2, tmp_path) as (launcher, ranks):
        launcher.send_signal(number)
        out, err = launcher.communicate(timeout=TIMEOUT)
    assert launcher.returncode == code, err
    assert out.count("stopped after step") == 1
    assert not any(map(alive, ranks.values()))


# torchrun sets OMP_NUM_THREADS=1; shares come from the CPUs.
def test_ranks_divide_the_cpus(words, tmp_path):
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        pytest.skip("this machine has one CPU")
    with long_run(words, 2, tmp_path) as (_, ranks):
        shares = [os.sched_getaffinity(ranks[rank]) for rank in (0, 1)]
    assert shares[0] and shares[1] and not shares[0] & shares[1], shares
    assert shares[0] | shares[1] <= cpus
