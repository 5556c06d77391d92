"""fp16 training by the program: against a loop of torch with fp32 masters and a scaled loss, and where fp16 ends.

Run by ctest, or by hand: STRATA_BIN=build/bin/strata python -m pytest tests/integration/test_fp16.py
"""

import json
import math
import re

import pytest
import torch
import transformers
from strata_program import (
    ALL_NVME,
    assert_same_bits,
    assert_same_run,
    homes,
    small_host,
    tensors_of,
    train,
    with_tensors,
    write_tokens,
)

torch.set_num_threads(1)

LENGTHS = (9, 25, 14, 21)
FP16_EPSILON = torch.finfo(torch.float16).eps
# At first the scale overflows, then it grows until it does so again: skips in the middle of a run.
SCALED = {"fp16": True, "initial_loss_scale": 2.0**22, "loss_scale_window": 3}
DATA_ERROR = 4


def load(folder, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")


class Fp16Loop:
    """What Strata says it does, in torch: fp16 weights rounded from fp32 masters, fp16 gradients of the scaled loss, and
    one decision per step. As torch.amp.GradScaler with its growth and backoff factors of 2 and 1/2, but the scale is
    that of the mean loss up to the power of two that is exact (docs/numerics.md)."""

    def __init__(self, folder, options, compute):
        self.model = load(folder, dtype=compute)
        self.masters = {n: p.detach().float().clone() for n, p in load(folder).named_parameters()}
        matrices = [p for p in self.masters.values() if p.dim() > 1]
        others = [p for p in self.masters.values() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": options["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
            lr=options["learning_rate"], eps=1e-8,
        )
        self.scale = options["initial_loss_scale"]
        self.window = options["loss_scale_window"]
        self.max_norm = options["max_grad_norm"]
        self.good_steps = 0

    def step(self, samples):
        """(loss, gradient norm, the scale used)."""
        for name, parameter in self.model.named_parameters():
            parameter.data.copy_(self.masters[name].half())
        self.model.zero_grad()
        total, count = 0.0, 0
        for sample in samples:
            ids = torch.tensor([sample])
            logits = self.model(input_ids=ids).logits.float()[0, :-1]
            total = total + torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
            count += len(sample) - 1
        scale = self.scale
        seed = scale / 2.0 ** math.floor(math.log2(count))
        (total * seed).backward()
        gradients = {n: p.grad.half().float() / (seed * count) for n, p in self.model.named_parameters()}
        norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients.values()))
        if not math.isfinite(norm):
            self.scale, self.good_steps = scale / 2, 0
            return total.item() / count, None, scale
        clip = min(1.0, self.max_norm / (norm + 1e-6)) if self.max_norm else 1.0
        for name, master in self.masters.items():
            master.grad = gradients[name] * clip
        self.optimizer.step()
        self.good_steps += 1
        if self.good_steps == self.window:
            self.scale, self.good_steps = scale * 2, 0
        return total.item() / count, norm, scale


# Products in fp32 differ by fp32 rounding, which now and then turns one gradient to the next fp16 number, and Adam
# makes a whole update of a tiny one. (Tied, Strata rounds the head's and the lookup's part each, the loop their sum.)
# In fp16 every product and sum of a layer rounds to 11 bits, and the two programs add in another order; the
# mean over all targets is then off by one such rounding at most. Measured: 2.2e-5 and 1.1e-4.
TOLERANCE = {"fp32": 1e-4, "fp16": FP16_EPSILON}


@pytest.mark.parametrize("kind, tied, compute, max_norm", [
    ("llama", False, "fp32", 0.5), ("qwen2", True, "fp32", 0), ("qwen3", False, "fp16", 1.0),
])
def test_twenty_steps_follow_a_loop_of_torch_with_masters_and_a_scaled_loss(
    kind, tied, compute, max_norm, tiny, tmp_path
):
    options = {**SCALED, "learning_rate": 1e-3, "weight_decay": 0.1, "max_grad_norm": max_norm, "max_steps": 20}
    folder = tiny(kind, tied=tied)
    samples = write_tokens(tmp_path / "data.tok", LENGTHS)
    result = train(
        folder, tmp_path / "data.tok", tmp_path / "out", per_device_train_batch_size=4,
        **{**options, "strata.compute": compute},
    )
    loop = Fp16Loop(folder, options, torch.float32 if compute == "fp32" else torch.float16)
    expected = [loop.step(samples) for _ in range(20)]

    assert [line["loss_scale"] for line in result.metrics] == [scale for _, _, scale in expected]
    skipped = [norm is None for _, norm, _ in expected]
    assert skipped[0] and any(skipped[6:]) and sum(skipped) < 12, "the run skips at its start and in its middle"
    assert [line["skipped_steps"] for line in result.metrics] == [sum(skipped[: i + 1]) for i in range(20)]
    worst = 0.0
    for line, (loss, norm, _) in zip(result.metrics, expected):
        worst = max(worst, abs(line["loss"] / loss - 1))
        assert line["loss"] == pytest.approx(loss, rel=TOLERANCE[compute]), line["step"]
        if norm is None:
            assert line["grad_norm"] is None
        else:
            assert line["grad_norm"] == pytest.approx(norm, rel=10 * TOLERANCE[compute]), line["step"]
    assert result.metrics[-1]["loss"] < 0.9 * result.metrics[0]["loss"]
    print(f"largest relative error of a loss {worst:.1e}, allowed {TOLERANCE[compute]:.1e}")


PLACEMENTS = {
    "device": homes("device", "device", "device"),
    "host": small_host("host", "host", "host"),
    "nvme": small_host(*ALL_NVME),
}


@pytest.mark.parametrize("accumulation", [1, 3])
def test_homes_change_no_bit_and_no_decision(accumulation, tiny, tmp_path):
    folder = tiny("llama", vocab_size=1003, hidden_size=104, intermediate_size=301)
    write_tokens(tmp_path / "data.tok", (9, 31, 12, 26, 18, 40, 3, 22))
    runs = {}
    for name, placement in PLACEMENTS.items():
        (tmp_path / f"nvme_{name}").mkdir()
        runs[name] = train(
            folder, tmp_path / "data.tok", tmp_path / name, max_steps=12, gradient_accumulation_steps=accumulation,
            **{**SCALED, **placement, "strata.nvme.paths": tmp_path / f"nvme_{name}"},
        )
    (done,) = (int(path.name.split("-")[1]) for path in (tmp_path / "device").glob("checkpoint-*"))
    assert 3 < done < 12
    for run in runs.values():
        assert [line["loss_scale"] for line in run.metrics] == [line["loss_scale"] for line in runs["device"].metrics]
        assert_same_run(run, runs["device"], done)
    assert any(line["bytes"]["nvme_written"] > 0 for line in runs["nvme"].metrics), "the states were paged"


@pytest.mark.parametrize("placement", ["host", "nvme"])
def test_skipped_steps_leave_every_bit_and_the_schedule(placement, tiny, tmp_path):
    """NUM-27."""
    folder = tiny("llama", vocab_size=1003, hidden_size=104, intermediate_size=301)
    write_tokens(tmp_path / "data.tok", LENGTHS)
    (tmp_path / "nvme").mkdir()
    options = {
        **SCALED, **PLACEMENTS[placement], "strata.nvme.paths": tmp_path / "nvme", "per_device_train_batch_size": 4,
        "lr_scheduler_type": "linear", "warmup_steps": 4, "max_grad_norm": 0,
    }
    # A checkpoint after every step; the one of a skipped step takes the place of the one before it.
    whole = train(folder, tmp_path / "data.tok", tmp_path / "whole", max_steps=12, save_steps=1, **options)
    skips = [line["skipped_steps"] for line in whole.metrics]
    rises = [skips[0] > 0, *(a < b for a, b in zip(skips, skips[1:]))]
    middle = next(i for i in range(1, 12) if rises[i] and not rises[i - 1])
    before = train(folder, tmp_path / "data.tok", tmp_path / "before", max_steps=middle, **options)
    after = train(folder, tmp_path / "data.tok", tmp_path / "after", max_steps=middle + 1, **options)
    done = middle - skips[middle - 1]
    assert_same_run(after, before, done, f"step {middle + 1} was skipped")
    manifests = [json.loads((run.checkpoint(done) / "strata.json").read_text()) for run in (before, after)]
    assert manifests[1]["loss_scale"] == {"good_steps": 0, "scale": manifests[0]["loss_scale"]["scale"] / 2}
    assert [m["step"] for m in manifests] == [done, done] and manifests[1]["skipped"] == manifests[0]["skipped"] + 1
    rates = [line["learning_rate"] for line in whole.metrics]
    assert rates[middle + 1] == rates[middle] != rates[middle - 1]


@pytest.mark.parametrize("placement", ["device", "nvme"])
def test_resumed_run_has_the_bits_and_the_scale_of_the_uninterrupted_one(placement, tiny, tmp_path):
    folder = tiny("llama")
    write_tokens(tmp_path / "data.tok", (9, 31, 12, 26, 18))
    (tmp_path / "nvme").mkdir()
    whole = train(folder, tmp_path / "data.tok", tmp_path / "whole", max_steps=16, **SCALED)
    first = train(folder, tmp_path / "data.tok", tmp_path / "out", max_steps=9, **SCALED)
    assert 0 < first.metrics[-1]["skipped_steps"] < 9
    resumed = train(
        folder, tmp_path / "data.tok", tmp_path / "out", max_steps=16, resume_from_checkpoint=True,
        **{**SCALED, **PLACEMENTS[placement], "strata.nvme.paths": tmp_path / "nvme"},
    )
    for now, then in zip(resumed.metrics[9:], whole.metrics[9:], strict=True):
        for key in ("step", "loss", "grad_norm", "loss_scale", "skipped_steps"):
            assert now[key] == then[key], key
    (done,) = (int(path.name.split("-")[1]) for path in (tmp_path / "whole").glob("checkpoint-*"))
    assert_same_run(resumed, whole, done)


def test_constant_scale_is_used_and_logged(tiny, tmp_path):
    write_tokens(tmp_path / "data.tok", LENGTHS)
    result = train(tiny("llama"), tmp_path / "data.tok", tmp_path / "out", fp16=True, loss_scale=512)
    assert [line["loss_scale"] for line in result.metrics] == [512, 512, 512]
    assert "scale 512" in result.err
    without = train(tiny("llama"), tmp_path / "data.tok", tmp_path / "bf16")
    assert "loss_scale" not in without.metrics[0] and " scale " not in without.err


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rate_of_zero_returns_the_weights_and_export_agrees_with_config(dtype, tiny, tmp_path):
    folder = tiny("qwen2", dtype=dtype)
    write_tokens(tmp_path / "data.tok", (9, 31))
    result = train(folder, tmp_path / "data.tok", tmp_path / "out", learning_rate=0, fp16=True, loss_scale=1)
    assert_same_bits(result.weights(), tensors_of(folder / "model.safetensors"), dtype)
    config = json.loads((result.folder / "model" / "config.json").read_text())
    assert config.get("torch_dtype", config.get("dtype")) == dtype
    assert load(result.folder / "model", dtype="auto").dtype == getattr(torch, dtype)


# --- Where fp16 ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["device", "nvme"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weight_that_fp16_cannot_hold_is_refused_with_tensor_and_value(dtype, placement, tiny, tmp_path):
    """NUM-26."""
    name = "model.layers.1.mlp.up_proj.weight"

    def widen(tensors):
        tensors[name][3, 5] = -1e5

    folder = with_tensors(tiny("llama", dtype=dtype), tmp_path / "model", widen)
    write_tokens(tmp_path / "data.tok", LENGTHS)
    (tmp_path / "nvme").mkdir()
    options = {**PLACEMENTS[placement], "strata.nvme.paths": tmp_path / "nvme"}
    refused = train(folder, tmp_path / "data.tok", tmp_path / "out", fp16=True, expect=DATA_ERROR, **options)
    value = tensors_of(folder / "model.safetensors")[name][3, 5].item()
    element = 3 * 56 + 5
    found = re.search(rf"{re.escape(name)}: element {element} is ([-+.e0-9]+)", refused.err)
    assert found and float(found[1]) == pytest.approx(value, rel=1e-5), refused.err
    assert "bf16: true" in refused.err
    train(folder, tmp_path / "data.tok", tmp_path / "bf16", max_steps=1, **options)


def test_weights_up_to_the_largest_fp16_number_are_taken(tiny, tmp_path):
    """NUM-26: nothing that fits is refused; what is below half of the smallest subnormal becomes zero."""

    def edge(tensors):
        tensors["model.embed_tokens.weight"][1000, :4] = torch.tensor([65504.0, -65519.0, 2.0**-24, 2.0**-30])

    folder = with_tensors(tiny("llama"), tmp_path / "model", edge)
    write_tokens(tmp_path / "data.tok", LENGTHS, vocab_size=900)
    result = train(folder, tmp_path / "data.tok", tmp_path / "out", fp16=True, max_steps=1, weight_decay=0)
    # Nobody looked this row up, so its fp32 masters are what was read.
    row = result.weights()["model.embed_tokens.weight"][1000, :4]
    assert row.tolist() == [65504.0, -65519.0, 2.0**-24, 2.0**-30]


def test_norm_weights_times_ten_thousand_stop_the_run_with_advice(tiny, tmp_path):
    """NUM-24."""

    def blow_up(tensors):
        for name in tensors:
            if "norm" in name:
                tensors[name] *= 1e4

    folder = with_tensors(tiny("llama"), tmp_path / "model", blow_up)
    write_tokens(tmp_path / "data.tok", LENGTHS)
    result = train(
        folder, tmp_path / "data.tok", tmp_path / "out", fp16=True, max_steps=100, expect=DATA_ERROR,
        **{"strata.compute": "fp16"},
    )
    assert len(result.metrics) == 16, "65536 halves 16 times to 1"
    assert result.metrics[-1]["loss_scale"] == 2 and result.metrics[-1]["skipped_steps"] == 16
    for words in ("loss scale of 1", "min_loss_scale", "bf16: true", "learning_rate"):
        assert words in result.err, words
