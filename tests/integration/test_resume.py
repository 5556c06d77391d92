"""Runs that end early, by a signal or between saves, and their continuation: the same bits as without a break.

Run by ctest, or by hand: STRATA_BIN=build/bin/strata python -m pytest tests/integration/test_resume.py
"""

import json
import shutil
import signal
import subprocess
import time

import pytest
from strata_program import ALL_NVME, assert_same_run, program, small_host, train, train_options, words_of, write_tokens


@pytest.fixture(scope="module")
def eight_steps(tiny, tmp_path_factory):
    """(model, data, the uninterrupted run of 8 steps that saved each of them). 5 batches are an epoch."""
    data = tmp_path_factory.mktemp("data") / "data.tok"
    write_tokens(data, (9, 31, 12, 26, 18, 40, 3, 22, 11))
    folder = tiny("llama")
    out = tmp_path_factory.mktemp("whole")
    return folder, data, train(folder, data, out, max_steps=8, save_steps=1, lr_scheduler_type="linear")


def copy_checkpoint(run, step, out):
    shutil.copytree(run.checkpoint(step), out / f"checkpoint-{step}")


# NUM-11: Adam's step count was not restored, so that bias correction began again.
@pytest.mark.parametrize("placement", [None, ALL_NVME, ("host", "device", "host")], ids=str)
@pytest.mark.parametrize("step", [3, 6])  # before and after the end of the first epoch
def test_resumed_run_equals_the_uninterrupted_one(step, placement, eight_steps, tmp_path):
    folder, data, whole = eight_steps
    copy_checkpoint(whole, step, tmp_path / "out")
    options = {}
    if placement:
        (tmp_path / "nvme").mkdir()
        options = {**small_host(*placement), "strata.nvme.paths": tmp_path / "nvme"}
    resumed = train(
        folder, data, tmp_path / "out", max_steps=8, lr_scheduler_type="linear", resume_from_checkpoint=True, **options
    )
    assert [line["step"] for line in resumed.metrics] == list(range(step + 1, 9))
    for now, then in zip(resumed.metrics, whole.metrics[step:], strict=True):
        assert (now["loss"], now["grad_norm"], now["epoch"]) == (then["loss"], then["grad_norm"], then["epoch"])
    assert_same_run(resumed, whole, 8)


def test_bf16_weights_are_rebuilt_from_the_checkpoint_named_by_its_path(eight_steps, tmp_path):
    folder, data, whole = eight_steps
    resumed = train(
        folder, data, tmp_path / "out", max_steps=8, lr_scheduler_type="linear",
        resume_from_checkpoint=whole.checkpoint(2),
    )
    assert_same_run(resumed, whole, 8)


def test_last_step_is_saved_though_it_is_no_multiple_of_save_steps_and_old_checkpoints_go(tiny, tmp_path):
    write_tokens(tmp_path / "data.tok", (9, 31))
    result = train(
        tiny("llama"), tmp_path / "data.tok", tmp_path / "out", max_steps=7, save_steps=2, save_total_limit=2
    )
    assert sorted(path.name for path in result.folder.glob("*checkpoint*")) == ["checkpoint-6", "checkpoint-7"]


def test_run_that_starts_anew_keeps_its_own_checkpoint_though_the_earlier_run_got_further(tiny, tmp_path):
    write_tokens(tmp_path / "data.tok", (9, 31))
    folder, data, out = tiny("llama"), tmp_path / "data.tok", tmp_path / "out"
    train(folder, data, out, max_steps=6)
    again = train(folder, data, out, max_steps=2, save_steps=1, overwrite_output_dir=True, save_total_limit=1)
    assert sorted(path.name for path in out.glob("*checkpoint*")) == ["checkpoint-2", "superseded-checkpoint-6"]
    assert str(again.checkpoint(2)) in again.out


def truncate(checkpoint):
    path = checkpoint / "states.safetensors"
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip_a_bit(checkpoint):
    path = checkpoint / "states.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


TORN = {
    "truncated_states": truncate,
    "flipped_bit": flip_a_bit,
    "no_manifest": lambda checkpoint: (checkpoint / "strata.json").unlink(),
    "half_a_manifest": lambda checkpoint: (checkpoint / "strata.json").write_text('{"format": "strata-ch'),
    "no_states": lambda checkpoint: (checkpoint / "states.safetensors").unlink(),
    "empty_folder": lambda checkpoint: [path.unlink() for path in checkpoint.iterdir()],
}


@pytest.mark.parametrize("damage", TORN)
def test_damaged_newest_checkpoint_is_passed_over_with_a_warning(damage, eight_steps, tmp_path):
    folder, data, whole = eight_steps
    for step in (4, 6):
        copy_checkpoint(whole, step, tmp_path / "out")
    TORN[damage](tmp_path / "out" / "checkpoint-6")
    resumed = train(
        folder, data, tmp_path / "out", max_steps=8, lr_scheduler_type="linear", resume_from_checkpoint=True
    )
    assert "passing over" in resumed.err and "checkpoint-6" in resumed.err
    assert resumed.metrics[0]["step"] == 5
    assert_same_run(resumed, whole, 8)


def wait_for_steps(process, metrics, steps):
    deadline = time.monotonic() + 60
    while not metrics.exists() or metrics.read_text().count("\n") < steps:
        assert process.poll() is None and time.monotonic() < deadline, "the run did not get to its third step"
        time.sleep(0.01)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"])
def test_signal_saves_and_the_resumed_run_equals_an_uninterrupted_one(number, code, tiny, tmp_path):
    folder = tiny("llama")
    write_tokens(tmp_path / "data.tok", (9, 31, 12, 26, 18))
    (tmp_path / "nvme").mkdir()
    options = {**small_host(*ALL_NVME), "strata.nvme.paths": tmp_path / "nvme"}
    words = words_of(
        train_options(folder, tmp_path / "data.tok", tmp_path / "out", **{"max_steps": 100000, **options})
    )
    with subprocess.Popen([program(), "train", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        wait_for_steps(process, tmp_path / "out" / "metrics.jsonl", 3)
        process.send_signal(number)
        process.wait(timeout=60)
    assert process.returncode == code
    assert list((tmp_path / "nvme").iterdir()) == []
    assert not (tmp_path / "out" / "model").exists()
    (checkpoint,) = (tmp_path / "out").glob("checkpoint-*")
    reached = int(checkpoint.name.split("-")[1])
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == reached >= 3
    last = reached + 3
    resumed = train(
        folder, tmp_path / "data.tok", tmp_path / "out", max_steps=last, resume_from_checkpoint=True, **options
    )
    whole = train(folder, tmp_path / "data.tok", tmp_path / "whole", max_steps=last)
    assert_same_run(resumed, whole, last)
