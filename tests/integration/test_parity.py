"""Logits, loss and every gradient of the decoder against transformers, in fp32.

Run by ctest, or by hand:
STRATA_PARITY_DUMP=build/tests/integration/strata_parity_dump python -m pytest tests/integration/test_parity.py
"""

import os
import subprocess
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

REPOSITORY = Path(__file__).resolve().parents[2]
IGNORED = -100

# Two layers, sizes that are multiples of nothing, grouped heads, positions beyond the llama3 scaling's original length.
COMMON = dict(
    vocab_size=1013, hidden_size=56, intermediate_size=149, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, attn_implementation="eager",
)
LLAMA3_ROPE = dict(
    rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
LINEAR_ROPE = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)


def llama(**keys):
    return transformers.LlamaConfig(**{**COMMON, **keys})


CONFIGS = {
    "llama": llama(),
    "llama_llama3_rope": llama(rope_parameters=LLAMA3_ROPE),
    "llama_linear_rope_tied": llama(rope_parameters=LINEAR_ROPE, tie_word_embeddings=True),
    "llama_all_biases": llama(attention_bias=True, mlp_bias=True),
    "llama_one_key_head": llama(num_key_value_heads=1, head_dim=10),
    "mistral_window": transformers.MistralConfig(**COMMON, sliding_window=8, tie_word_embeddings=False),
    "mistral_window_longer_than_text": transformers.MistralConfig(**COMMON, sliding_window=64),
    "qwen2": transformers.Qwen2Config(**COMMON, tie_word_embeddings=False),
    "qwen2_tied": transformers.Qwen2Config(**COMMON, tie_word_embeddings=True),
    "qwen2_window_in_last_layer": transformers.Qwen2Config(
        **COMMON, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3_head_dim": transformers.Qwen3Config(**COMMON, head_dim=32, tie_word_embeddings=False),
    "qwen3_head_dim_tied": transformers.Qwen3Config(**COMMON, head_dim=32, tie_word_embeddings=True),
}


def random_model(config):
    """Weights at which every part of the network matters: fresh ones give nearly uniform logits and zero biases."""
    torch.manual_seed(20260)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.5)
            elif "norm" in name:
                parameter.normal_(1, 0.2)
            else:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model.eval()


def random_batch(vocab_size, lengths, tokens_each):
    """Right-padded sequences with shifted labels; some positions inside carry no label either."""
    generator = torch.Generator().manual_seed(7)
    shape = (len(lengths), tokens_each)
    # Few different tokens, so that many occur several times in one batch.
    tokens = torch.randint(0, min(vocab_size, 60), shape, generator=generator)
    labels = torch.randint(0, vocab_size, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.2] = IGNORED
    mask = torch.arange(tokens_each) < torch.tensor(lengths).unsqueeze(1)
    tokens[~mask] = 0
    labels[~mask] = IGNORED
    return tokens, labels, mask


def expected_of(model, tokens, labels, mask):
    model.zero_grad()
    logits = model(input_ids=tokens, attention_mask=mask.long()).logits.float()
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    loss_sum = losses.double().sum()
    loss_sum.backward()
    return logits.detach(), loss_sum.item(), {n: p.grad for n, p in model.named_parameters()}


def computed_by_strata(folder, tokens, labels, work):
    program = os.environ.get("STRATA_PARITY_DUMP")
    if not program:
        pytest.fail("STRATA_PARITY_DUMP does not name the strata_parity_dump program: run through ctest, or set it")
    save_file({"tokens": tokens, "labels": labels}, work / "batch.safetensors")
    command = [program, folder, work / "batch.safetensors", work]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return load_file(work / "parity.safetensors")


def tolerance(config, tokens):
    """Relative to a tensor's largest element: a sum of n rounded terms is off by about sqrt(n) fp32 epsilons, and the
    error of one layer passes through the next ones."""
    longest_sum = max(config.intermediate_size, config.vocab_size, tokens.numel())
    return 2 * config.num_hidden_layers * longest_sum**0.5 * torch.finfo(torch.float32).eps


def relative_error(computed, expected):
    assert computed.shape == expected.shape
    return ((computed - expected).abs().max() / expected.abs().max()).item()


def check(model, folder, tokens, labels, mask, work):
    torch.set_num_threads(2)
    logits, loss_sum, gradients = expected_of(model, tokens, labels, mask)
    computed = computed_by_strata(folder, tokens, labels, work)
    allowed = tolerance(model.config, tokens)
    errors = {"logits": relative_error(computed["logits"][mask], logits[mask]),
              "loss_sum": abs(computed["loss_sum"].item() - loss_sum) / loss_sum}
    assert computed["tokens"].item() == (labels != IGNORED).sum().item()
    assert {"grad." + name for name in gradients} == {name for name in computed if name.startswith("grad.")}
    for name, gradient in gradients.items():
        errors[name] = relative_error(computed["grad." + name], gradient)
    print(f"largest relative error {max(errors.values()):.2e} ({max(errors, key=errors.get)}), allowed {allowed:.2e}")
    assert {name: error for name, error in errors.items() if not error <= allowed} == {}


@pytest.mark.parametrize("lengths", [(37, 37), (37, 1, 23)], ids=["full", "padded"])
@pytest.mark.parametrize("name", CONFIGS)
def test_decoder_agrees_with_transformers(name, lengths, tmp_path):
    model = random_model(CONFIGS[name])
    model.save_pretrained(tmp_path / "model")
    check(model, tmp_path / "model", *random_batch(model.config.vocab_size, lengths, 37), tmp_path)


def test_batch_without_any_label_has_zero_loss_and_zero_gradients(tmp_path):
    model = random_model(CONFIGS["qwen2_tied"])
    model.save_pretrained(tmp_path / "model")
    tokens, labels, _ = random_batch(model.config.vocab_size, (20, 20), 20)
    computed = computed_by_strata(tmp_path / "model", tokens, torch.full_like(labels, IGNORED), tmp_path)
    assert computed["loss_sum"].item() == 0 and computed["tokens"].item() == 0
    for name, _ in model.named_parameters():
        assert computed["grad." + name].count_nonzero() == 0


def test_token_outside_the_vocabulary_is_refused_with_its_value(tmp_path):
    model = random_model(CONFIGS["llama"])
    model.save_pretrained(tmp_path / "model")
    tokens, labels, _ = random_batch(model.config.vocab_size, (8,), 8)
    tokens[0, 3] = 1013
    with pytest.raises(AssertionError, match="token id 1013 is outside the model's vocabulary of 1013"):
        computed_by_strata(tmp_path / "model", tokens, labels, tmp_path)


def test_smollm2_agrees_with_transformers(tmp_path):
    folder = Path(os.environ.get("STRATA_SMOLLM2", REPOSITORY / ".cache" / "smollm2"))
    if not (folder / "config.json").exists():
        pytest.skip(f"no SmolLM2 folder at {folder}: set STRATA_SMOLLM2 to one")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()
    # transformers drops the lookup's gradient of the padding token, which here also ends each turn of a chat. The
    # gradient of the loss has it, and so has this engine's.
    model.get_input_embeddings().padding_idx = None
    check(model, folder, *random_batch(model.config.vocab_size, (64, 40), 64), tmp_path)
