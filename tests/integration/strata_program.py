"""Runs the strata program and reads what it leaves behind. The path of the program comes from STRATA_BIN."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from token_file import SampleStore

VOCAB_SIZE = 1003  # of tools/tiny_models.py
TIMEOUT = 120  # seconds; a guard against hangs, never a measurement


def program():
    path = os.environ.get("STRATA_BIN")
    if not path:
        pytest.fail("STRATA_BIN does not name the strata program: run through ctest, or set it")
    return path


def fake_cuda():
    """The CUDA plug-in over the fake runtime: a device whose memory is the host's."""
    path = os.environ.get("STRATA_CUDA_FAKE_PLUGIN")
    if not path:
        pytest.skip("STRATA_CUDA_FAKE_PLUGIN does not name the fake CUDA plug-in")
    return path


@dataclass
class Result:
    code: int
    out: str
    err: str
    folder: Path = None

    @property
    def metrics(self):
        """The logged steps, oldest first."""
        path = self.folder / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines() if line]
        return [line for line in lines if "loss" in line]

    def checkpoint(self, step):
        return self.folder / f"checkpoint-{step}"

    def weights(self):
        return tensors_of(self.folder / "model" / "model.safetensors")


def words_of(options):
    """{"max_steps": 4, "strata.nvme.paths": p} as flags, as a person would type them."""
    words = []
    for key, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += ["--" + key.replace("_", "-"), text]
    return words


def run_strata(command, *words, cwd=None, timeout=TIMEOUT):
    done = subprocess.run(
        [program(), command, *map(str, words)], capture_output=True, text=True, timeout=timeout, cwd=cwd
    )
    return Result(done.returncode, done.stdout, done.stderr)


def train_options(model, data, out, **options):
    """Options of a small run. Keys with dots come in through `**{"strata.x": ...}`; later ones win."""
    return {
        "model": model,
        "data": data,
        "output_dir": out,
        "max_steps": 3,
        "max_seq_length": 256,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "save_steps": 0,
        # auto measures which type is faster, so that two runs may differ.
        "strata.compute": "fp32",
        "strata.compute_threads": 1,
        "strata.budgets.device": "64MiB",
        "strata.budgets.host": "64MiB",
        **options,
    }


def train(model, data, out, *, expect=0, **options):
    result = run_strata("train", *words_of(train_options(model, data, out, **options)))
    result.folder = Path(out)
    assert result.code == expect, f"exit code {result.code}, expected {expect}\n{result.err}"
    return result


def homes(param, grad, optimizer):
    return {
        "strata.placement.param": param,
        "strata.placement.grad": grad,
        "strata.placement.optimizer": optimizer,
    }


ALL_NVME = ("nvme", "host", "nvme")


def small_host(param, grad, optimizer):
    """These homes, with hardly more host memory than they need when the optimizer's states are on NVMe."""
    return {
        **homes(param, grad, optimizer),
        "strata.budgets.host": "10MiB" if optimizer == "nvme" else "24MiB",
        "strata.budgets.nvme": "64MiB",
    }


def write_tokens(path, lengths, *, seed=0, vocab_size=VOCAB_SIZE, masked=(), tokens=None):
    """A token file of random samples; the samples numbered in `masked` have no target. Returns their tokens."""
    random = np.random.default_rng(seed)
    store = SampleStore()
    samples = tokens or [random.integers(2, vocab_size, length).tolist() for length in lengths]
    for i, sample in enumerate(samples):
        store.add(sample, np.zeros(len(sample)) if i in masked else np.ones(len(sample)))
    store.write(path)
    return samples


def tensors_of(path):
    """{name: torch tensor} of one safetensors file."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def change_tensors(path, change):
    """Lets change({name: tensor}) alter the tensors of one safetensors file in place."""
    tensors = tensors_of(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def with_tensors(folder, copy, change):
    """A copy of a model whose tensors change() has altered in place."""
    shutil.copytree(folder, copy)
    change_tensors(copy / "model.safetensors", change)
    return copy


def bits(tensor):
    import torch

    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def assert_same_bits(actual, expected, what):
    assert actual.keys() == expected.keys(), what
    different = [
        name for name in expected
        if actual[name].dtype != expected[name].dtype or bits(actual[name]) != bits(expected[name])
    ]
    assert not different, f"{what}: {len(different)} of {len(expected)} tensors differ, the first is {different[0]}"


def assert_same_run(actual, expected, step, what=""):
    """Weights and every state after `step` updates are the same bytes."""
    assert_same_bits(
        tensors_of(actual.checkpoint(step) / "states.safetensors"),
        tensors_of(expected.checkpoint(step) / "states.safetensors"),
        f"{what} states",
    )
    if (actual.folder / "model").exists() and (expected.folder / "model").exists():
        assert_same_bits(actual.weights(), expected.weights(), f"{what} weights")
