"""Tiny random models written by transformers itself: real files of the real library, some 200,000 parameters.

    python tools/tiny_models.py --out DIR --kind llama|mistral|qwen2|qwen3 [--tied] [--dtype float32] [--with-tokenizer]

Norm weights and biases are random too: with the ones and zeros of a fresh model a loader could drop them unnoticed.
"""

import argparse
import json
from pathlib import Path

KINDS = ("llama", "mistral", "qwen2", "qwen3")
VOCAB_SIZE = 1003
# Odd on purpose: nothing here is a multiple of a SIMD width or of a page.
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 56,
    "intermediate_size": 149,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# transformers drops a line break that follows a block tag, so the last one of a message is an expression.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]\n{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)


def make_config(kind, **overrides):
    """The transformers configuration of a tiny model of this kind."""
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

    classes = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
    special = {
        "llama": {"rope_parameters": dict(LLAMA3_ROPE), "rms_norm_eps": 1e-5},
        "mistral": {"sliding_window": 7},
        "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
        "qwen3": {"head_dim": 18},
    }
    return classes[kind](**{**SIZES, **special[kind], **overrides})


def randomize(model, seed):
    """Fills every parameter from `seed`. Matrices keep activations near 1, so that every layer matters to the loss."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            value = 0.2 * noise if name.endswith("bias") else 1.0 + 0.2 * noise
        else:
            value = noise * (0.5 if "embed" in name else parameter.shape[1] ** -0.5)
        parameter.data.copy_(value.to(parameter.dtype))


def make_tokenizer(out):
    """A byte-level BPE tokenizer with ids below VOCAB_SIZE and a chat template, saved into `out`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(out)
    return wrapped


def make_tiny(
    kind, out, *, tied=False, dtype="float32", with_tokenizer=False, seed=0, max_shard_size="5GB", **overrides
):
    """Writes the model into folder `out` and returns it. `overrides` are configuration keys (num_hidden_layers=1)."""
    import torch
    from transformers import AutoModelForCausalLM

    config = make_config(kind, tie_word_embeddings=tied, **overrides)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    randomize(model, seed)
    model.config.dtype = getattr(torch, dtype)
    Path(out).mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out, max_shard_size=max_shard_size)
    if with_tokenizer:
        make_tokenizer(out)
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--tied", action="store_true", help="one matrix for embedding and output")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--with-tokenizer", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="any configuration key")
    arguments = parser.parse_args()
    overrides = {key: json.loads(value) for key, _, value in (item.partition("=") for item in arguments.set)}
    make_tiny(
        arguments.kind,
        arguments.out,
        tied=arguments.tied,
        dtype=arguments.dtype,
        with_tokenizer=arguments.with_tokenizer,
        seed=arguments.seed,
        **overrides,
    )


if __name__ == "__main__":
    main()
