"""Kinds of silent error that offloading trainers have shipped, each against torch or against the same run in memory.

The ids name the kinds of error. Run by ctest, or by hand:
STRATA_BIN=build/bin/strata python -m pytest tests/integration/test_numerics.py
"""


import pytest
import torch
from strata_program import (
    ALL_NVME,
    assert_same_bits,
    assert_same_run,
    homes,
    tensors_of,
    train,
    with_tensors,
    write_tokens,
)
from torch_reference import assert_moved_alike, load, torch_run, weights_of

torch.set_num_threads(1)

TIERS = {
    "device": ("device", "device", "device"),
    "host": ("host", "host", "host"),
    "nvme": ALL_NVME,
}
# The file buffer and a few pages: what lives on the drive passes through them in every step.
FEW_PAGES = {"strata.slot_size": "256KiB", "strata.budgets.host": "7MiB", "strata.budgets.nvme": "64MiB"}


@pytest.fixture
def train_on(tmp_path):
    """train_on(tier, model, data, **options): a run in fp32 whose homes are all of that tier."""

    def run(tier, model, data, **options):
        number = sum(1 for _ in tmp_path.glob("out*"))
        drive = tmp_path / f"nvme{number}"
        drive.mkdir()
        on_drive = {"strata.nvme.paths": drive, **FEW_PAGES} if tier == "nvme" else {}
        options = {"bf16": False, **homes(*TIERS[tier]), **on_drive, **options}
        result = train(model, data, tmp_path / f"out{number}", **options)
        if tier == "nvme":
            last = result.metrics[-1]["bytes"]
            assert last["nvme_read"] > 0 and last["nvme_written"] > 0, "the drive was not used"
        return result

    return run


def assert_same_history(actual, expected):
    for now, then in zip(actual.metrics, expected.metrics, strict=True):
        assert (now["loss"], now["grad_norm"]) == (then["loss"], then["grad_norm"]), now["step"]


def assert_history_of(result, history, rel=2e-6):
    for line, (loss, norm, _) in zip(result.metrics, history, strict=True):
        assert line["loss"] == pytest.approx(loss, rel=rel), line["step"]
        assert line["grad_norm"] == pytest.approx(norm, rel=10 * rel), line["step"]


# --- Every tier gives the same bits -------------------------------------------------------------------------------

# Norms of three elements, biases of one and two.
SMALL_TENSORS = dict(
    hidden_size=3, intermediate_size=1, head_dim=2, num_attention_heads=3, num_key_value_heads=1, attention_bias=True,
    mlp_bias=True,
)


def test_fifty_steps_hand_over_every_gradient_also_of_tensors_with_one_element(tiny, tmp_path, train_on):
    """NUM-01: with states on a drive some gradients were never handed over."""
    folder, data = tiny("llama", **SMALL_TENSORS), tmp_path / "data.tok"
    assert {1, 3} <= {tensor.numel() for tensor in tensors_of(folder / "model.safetensors").values()}
    samples = write_tokens(data, (9, 25, 14, 21))
    options = dict(
        max_steps=50, per_device_train_batch_size=4, weight_decay=0.1, adam_epsilon=1e-6, max_grad_norm=1.0,
        learning_rate=1e-3, lr_scheduler_type="constant",
    )
    runs = {tier: train_on(tier, folder, data, **options) for tier in TIERS}
    for tier in ("host", "nvme"):
        assert_same_run(runs[tier], runs["device"], 50, tier)
        assert_same_history(runs[tier], runs["device"])
    model = load(folder)
    before = weights_of(model)
    assert_history_of(runs["device"], torch_run(model, samples, options), rel=1e-5)
    assert_moved_alike(runs["device"].weights(), weights_of(model), before, 2e-3)


@pytest.mark.parametrize("tier", ["host", "nvme"])
def test_twenty_steps_in_fp32_end_with_the_bits_of_the_device(tier, tiny, tmp_path, train_on):
    """NUM-21: losses differed from one way of placing states to another."""
    folder, data = tiny("qwen2"), tmp_path / "data.tok"
    write_tokens(data, (9, 31, 12, 26, 18, 40))
    options = dict(max_steps=20, gradient_accumulation_steps=2, weight_decay=0.1)
    here, there = (train_on(where, folder, data, **options) for where in (tier, "device"))
    assert_same_run(here, there, 20, tier)
    assert_same_history(here, there)


# --- Accumulation -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def four_documents(tiny, tmp_path_factory):
    """(model, data, torch's history of a run whose batch is all four, weights before, weights after)."""
    folder = tiny("llama")
    data = tmp_path_factory.mktemp("documents") / "data.tok"
    samples = write_tokens(data, (3, 17, 60, 200))
    model = load(folder)
    before = weights_of(model)
    options = dict(
        max_steps=5, learning_rate=1e-3, lr_scheduler_type="constant", weight_decay=0.0, adam_epsilon=1e-8,
        max_grad_norm=1.0,
    )
    return folder, data, torch_run(model, samples, options), before, weights_of(model)


@pytest.mark.parametrize("tier, grad_home", [("device", "device"), ("host", "host"), ("nvme", "host"), ("nvme", "device")])
@pytest.mark.parametrize("size, order", [(4, "horizontal"), (1, "horizontal"), (1, "vertical")])
def test_small_batches_add_up_to_the_large_one_though_their_token_counts_differ(
    size, order, tier, grad_home, four_documents, train_on
):
    """NUM-02: all micro-batches but one were dropped. NUM-03: an offloaded gradient replaced what had been added up.
    NUM-04: means of micro-batches were averaged though their numbers of targets differ."""
    folder, data, history, before, after = four_documents
    result = train_on(
        tier, folder, data, max_steps=5, per_device_train_batch_size=size, gradient_accumulation_steps=4 // size,
        **{"strata.placement.grad": grad_home, "strata.accumulation": order},
    )
    assert_history_of(result, history)
    assert_moved_alike(result.weights(), after, before, 1e-3)


# --- Clipping -----------------------------------------------------------------------------------------------------

# With momentum a step is as long as the clipped gradient; AdamW notices how clip factors differ from step to step, and,
# with an epsilon beside which gradients are small, their size too.
CLIPPED = {
    "momentum": dict(optim="momentum", learning_rate=1.0),
    "adamw": dict(optim="adamw", learning_rate=0.02, adam_epsilon=1e-3),
}


@pytest.mark.parametrize("limit", [0.1, 1e-3])
@pytest.mark.parametrize("kind", CLIPPED)
def test_clipping_is_that_of_torch_in_every_tier(kind, limit, tiny, tmp_path, train_on):
    """NUM-07: under offload a stale norm was used, or clipping had no effect. NUM-08: it failed where gradients are in
    host memory."""
    folder, data = tiny("qwen3"), tmp_path / "data.tok"
    samples = write_tokens(data, (9, 25, 14, 21))
    options = dict(
        max_steps=5, per_device_train_batch_size=4, weight_decay=0.0, lr_scheduler_type="constant",
        max_grad_norm=limit, **CLIPPED[kind],
    )
    model = load(folder)
    before = weights_of(model)
    history = torch_run(model, samples, {"adam_epsilon": 0, **options})
    assert min(norm for _, norm, _ in history) > limit, "nothing was clipped"
    runs = {tier: train_on(tier, folder, data, **options) for tier in TIERS}
    for tier, result in runs.items():
        assert_history_of(result, history, rel=1e-5)
        assert_moved_alike(result.weights(), weights_of(model), before, 1e-3)
        assert_same_run(result, runs["device"], 5, tier)


# --- Weight decay -------------------------------------------------------------------------------------------------


def without_gradients(tensors):
    """With no embedding every hidden state is zero, so norms get no gradient; with no way back into the sum, nor do
    attention and MLP."""
    for name, tensor in tensors.items():
        if "embed" in name or "o_proj" in name or "down_proj" in name:
            tensor.zero_()


@pytest.mark.parametrize("tier", TIERS)
def test_decay_shrinks_matrices_and_neither_norms_nor_biases(tier, tiny, tmp_path, train_on):
    """NUM-18: decay was applied to norms and biases, and nothing said to what."""
    folder = with_tensors(tiny("qwen2"), tmp_path / "model", without_gradients)
    write_tokens(tmp_path / "data.tok", (9, 25))
    result = train_on(tier, folder, tmp_path / "data.tok", max_steps=1, weight_decay=0.5, learning_rate=0.1)
    assert result.metrics[0]["skipped_steps"] == 0
    before, after = tensors_of(folder / "model.safetensors"), result.weights()
    flat = [name for name, tensor in before.items() if tensor.dim() == 1]
    spared = f"not of the {len(flat)} norms and biases ({sum(before[name].numel() for name in flat)} parameters)"
    assert f"weight decay 0.5 of {len(before) - len(flat)} matrices" in result.err and spared in result.err
    assert any("norm" in name for name in flat) and any("bias" in name for name in flat)
    assert_same_bits({name: after[name] for name in flat}, {name: before[name] for name in flat}, "norms and biases")
    for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
        full = next(key for key in before if f"0.{name}.weight" in key or f".{name}.weight" in key)
        assert torch.equal(after[full], before[full] * torch.tensor(1 - 0.1 * 0.5)), full


# --- Small updates ------------------------------------------------------------------------------------------------


def fresh(tensors):
    for name, tensor in tensors.items():
        if "norm" in name:
            tensor.fill_(1)


@pytest.fixture(scope="module")
def small_updates(tiny, tmp_path_factory):
    """(model, data, options, weights after torch's run in fp32)."""
    folder = with_tensors(tiny("llama", num_hidden_layers=2), tmp_path_factory.mktemp("small") / "model", fresh)
    data = folder.parent / "data.tok"
    samples = write_tokens(data, (9, 25, 14, 21))
    options = dict(
        max_steps=200, per_device_train_batch_size=4, learning_rate=1e-5, lr_scheduler_type="constant",
        weight_decay=0.0, adam_epsilon=1e-8, max_grad_norm=1.0,
    )
    model = load(folder)
    torch_run(model, samples, options)
    return folder, data, options, weights_of(model)


@pytest.mark.parametrize("master, tier", [("fp32", "device"), ("remainder", "device"), ("remainder", "nvme")])
def test_masters_keep_updates_that_bf16_weights_cannot_show(master, tier, small_updates, train_on):
    """NUM-19: pure bf16 weights absorbed small updates, and norms stayed 1 for the whole run."""
    folder, data, options, expected = small_updates
    result = train_on(tier, folder, data, bf16=True, **options, **{"strata.optimizer_states.master": master})
    masters = result.weights()  # of a folder in fp32
    for name in (name for name in expected if "norm" in name):
        moved = masters[name] - 1
        # The two runs see weights that differ by bf16's rounding, so they agree as far as gradients do.
        assert (moved - (expected[name] - 1)).norm() <= 0.1 * moved.norm(), name
        assert (moved != 0).all(), f"{name}: 1 - learning rate is 1 in bf16"
