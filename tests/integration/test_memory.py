"""What a run costs in resident memory, as the kernel counts it.

Run by ctest, or by hand: STRATA_BIN=build/bin/strata python -m pytest tests/integration/test_memory.py
"""

import random
import subprocess
import sys

import pytest
from strata_program import ALL_NVME, TIMEOUT, homes, program, train, train_options, words_of, write_tokens

MIB = 1 << 20
SEED = 20270110
STATE_BYTES = 12  # of the optimizer per parameter: master weight and two moments in fp32


# A process of its own between this one and the program: the kernel lets a program begin with the peak of who started it.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def peak_resident_bytes(model, data, out, **options):
    """Of a training run from start to end: creating the states, the steps and saving."""
    command = [program(), "train", *words_of(train_options(model, data, out, **options))]
    run = subprocess.run([sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, timeout=TIMEOUT)
    assert run.returncode == 0, run.stderr
    return int(run.stdout) * 1024


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.tok"
    write_tokens(path, (64,) * 8)
    return path


def numel_of(model):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).num_parameters()


def test_states_on_nvme_are_never_in_memory(tiny, data, tmp_path):
    """Also while they are created: the peak is below that of states in memory by nearly all of their bytes."""
    model = tiny("llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=8)
    states = STATE_BYTES * numel_of(model)
    shared = {"bf16": True, "max_seq_length": 64, "max_steps": 2, "strata.budgets.device": "256MiB"}
    in_memory = {**shared, **homes("host", "host", "host"), "strata.budgets.host": "1GiB"}
    (tmp_path / "swap").mkdir()
    on_nvme = {
        **shared,
        **homes(*ALL_NVME),
        "strata.budgets.host": "160MiB",
        "strata.budgets.nvme": "1GiB",
        "strata.nvme.paths": tmp_path / "swap",
    }

    memory_peak = peak_resident_bytes(model, data, tmp_path / "in_memory", **in_memory)
    nvme_peak = peak_resident_bytes(model, data, tmp_path / "on_nvme", **on_nvme)

    print(f"states {states / MIB:.0f} MiB; peak in memory {memory_peak / MIB:.0f}, on NVMe {nvme_peak / MIB:.0f} MiB")
    assert nvme_peak <= memory_peak - 0.8 * states


def test_memory_stays_flat_while_lengths_vary(tiny, tmp_path):
    lengths = [random.Random(SEED).randint(1, 512) for _ in range(300)]
    write_tokens(tmp_path / "data.tok", lengths)
    (tmp_path / "swap").mkdir()
    options = {
        **homes(*ALL_NVME),
        "max_seq_length": 512,
        "max_steps": 150,
        "strata.budgets.device": "128MiB",
        "strata.budgets.nvme": "64MiB",
        "strata.nvme.paths": tmp_path / "swap",
    }

    metrics = train(tiny("llama"), tmp_path / "data.tok", tmp_path / "out", **options).metrics

    early, late = metrics[19]["rss_bytes"], metrics[-1]["rss_bytes"]
    assert len(metrics) == 150
    assert late <= 1.05 * early, f"seed {SEED}: {early / MIB:.0f} MiB at step 20, {late / MIB:.0f} MiB at step 150"
