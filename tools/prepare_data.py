"""Tokenizes training data into the token file that strata reads (docs/token-file.md).

    python tools/prepare_data.py --model DIR --data FILE... --max-tokens 2048 --out train.tok
    python tools/prepare_data.py --model DIR --data chats.jsonl --max-tokens 2048 --out train.tok \\
        --val-fraction 0.02 --val-out val.tok

Records: text files, {"text"}, {"prompt", "completion"}, {"messages"}, ShareGPT {"conversations"}, Alpaca
{"instruction", "output"}, {"input_ids", "labels"}; as JSON Lines or a JSON array. The loss covers all of a text, the
completion of a prompt, and the assistant's turns of a chat, each with its end-of-sequence token. Texts are joined, one
EOS after each, and cut into samples of --max-tokens without padding; other records are one sample each, cut at
--max-tokens.

Prints one JSON line of counts. The same inputs, tokenizer and options again leave the file as it is.
Exit codes: 0 done, 2 usage, 4 a data or model file is not what it should be, 5 I/O.
"""

import argparse
import errno
import hashlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import xxhash
from data_encoding import KINDS, Encoded, Encoder, field_of, kind_of, load_tokenizer, messages_of, text_of
from data_records import BOM, DataProblem, ReadCounts, decode, parse_json, read_records

# Part of the hash of the inputs: raised whenever the same input would give other tokens or another mask.
REVISION = 1


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="prepare_data.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder: config.json and tokenizer files")
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--type", choices=("auto", *KINDS), default="auto")
    parser.add_argument("--max-tokens", type=int, required=True, metavar="N", help="longest sample")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.tok")
    parser.add_argument("--val-fraction", type=float, default=0.0, metavar="F", help="share of samples held out")
    parser.add_argument("--val-out", type=Path, metavar="FILE.tok")
    parser.add_argument("--seed", type=int, default=0, help="which samples are held out")
    options = parser.parse_args(arguments)
    if options.max_tokens < 2:
        parser.error(f"--max-tokens {options.max_tokens}: at least 2, as a token is predicted from the one before it")
    if not 0.0 <= options.val_fraction < 1.0:
        parser.error(f"--val-fraction {options.val_fraction}: expected 0 or more and less than 1")
    if (options.val_fraction > 0) != (options.val_out is not None):
        parser.error("--val-fraction and --val-out go together")
    if options.seed < 0:
        parser.error(f"--seed {options.seed}: expected 0 or more")
    return parser, options


def read_json_file(path):
    if not path.is_file():
        raise DataProblem(f"{path}: no such file; --model is a Hugging Face model folder")
    value = parse_json(decode(path.read_bytes().removeprefix(BOM), path), path)
    if not isinstance(value, dict):
        raise DataProblem(f"{path}: expected a JSON object")
    return value


def whole_number(config, key, path):
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise DataProblem(f"{path}: {key} is {json.dumps(value)}, expected a whole number from 1")
    return value


def eos_ids_of(folder, tokenizer):
    """Every id that ends a turn: that of the tokenizer and those of generation_config.json."""
    ids = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    path = folder / "generation_config.json"
    if path.is_file():
        listed = read_json_file(path).get("eos_token_id")
        ids += listed if isinstance(listed, list) else [listed]
    return [i for i in ids if type(i) is int]


def input_hash(options):
    """Of everything that decides the bytes written: inputs, tokenizer, options, library versions."""
    digest = hashlib.sha256()
    libraries = {name: version(name) for name in ("tokenizers", "transformers", "jinja2")}
    chosen = [REVISION, options.type, options.max_tokens, options.val_fraction, options.seed, libraries]
    digest.update(json.dumps(chosen).encode())
    model_files = [
        path
        for path in sorted(options.model.rglob("*"))
        if path.is_file() and path.suffix in (".json", ".jinja", ".model", ".txt") and ".safetensors" not in path.name
    ]
    for path in [*model_files, *options.data]:
        # A data file's suffix decides how it is read.
        digest.update(json.dumps([path.suffix, path.stat().st_size]).encode())
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def sidecar_of(path):
    return path.with_name(path.name + ".json")


def checksum_of(path):
    checksum = xxhash.xxh3_64()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            checksum.update(block)
    return checksum.hexdigest()


def reusable_summary(options, key):
    """The counts printed last time, when the files of that run are there and unharmed; else None."""
    try:
        sidecar = json.loads(sidecar_of(options.out).read_text(encoding="utf-8"))
        wanted = [str(path) for path in (options.out, options.val_out) if path]
        if sidecar["hash"] != key or sorted(sidecar["checksums"]) != sorted(wanted):
            return None
        if any(checksum_of(path) != checksum for path, checksum in sidecar["checksums"].items()):
            return None
        return sidecar["summary"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_sidecar(options, key, summary):
    checksums = {str(path): checksum_of(path) for path in (options.out, options.val_out) if path}
    sidecar = sidecar_of(options.out)
    temporary = sidecar.with_name(sidecar.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump({"hash": key, "checksums": checksums, "summary": summary}, stream, indent=2)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, sidecar)


def encode_record(encoder, record, kind):
    """One record that is a sample of its own."""
    value, where = record.value, record.where
    if kind == "tokens":
        if "input_ids" not in value:
            raise DataProblem(f"{where}: no input_ids")
        return encoder.tokens(record)
    if kind == "chat":
        return encoder.chat(messages_of(record), where, tools=value.get("tools"))
    if isinstance(value.get("prompt"), list) and isinstance(value.get("completion"), list):
        # TRL's conversational form: only what answers the prompt is trained.
        messages = messages_of(type(record)({"messages": value["prompt"] + value["completion"]}, where))
        return encoder.chat(messages, where, tools=value.get("tools"), first_trained=len(value["prompt"]))
    return encoder.completion(field_of(record, "prompt"), field_of(record, "completion"))


class SampleMaker:
    """Collects samples: cuts what is too long, joins texts into blocks, refuses ids the model has no row for."""

    def __init__(self, encoder, store, vocab_size):
        self.encoder = encoder
        self.store = store
        self.vocab_size = vocab_size
        self.stream = []
        self.cut_tokens = self.cut_samples = self.untrained_samples = 0

    def add(self, record, kind):
        if kind == "text":
            for tokens in self.encoder.document(text_of(record.value.get("text"), "text", record.where)):
                self._check(tokens, record.where)
                self.stream += tokens
                self._flush_blocks()
            return
        encoded = encode_record(self.encoder, record, kind)
        self._check(encoded.tokens, record.where)
        most = self.encoder.max_tokens
        if len(encoded.tokens) > most:
            self.cut_tokens += len(encoded.tokens) - most
            self.cut_samples += 1
            encoded = Encoded(encoded.tokens[:most], encoded.mask[:most])
        if any(encoded.mask[1:]):
            self.store.add(encoded.tokens, encoded.mask)
        else:
            self.untrained_samples += 1

    def finish(self):
        """The last, shorter block; a single token has nothing to be predicted from."""
        if len(self.stream) > 1:
            self.store.add(self.stream, [1] * len(self.stream))
        self.stream = []

    def _flush_blocks(self):
        most = self.encoder.max_tokens
        whole = len(self.stream) // most * most
        for start in range(0, whole, most):
            self.store.add(self.stream[start : start + most], [1] * most)
        self.stream = self.stream[whole:]

    def _check(self, tokens, where):
        largest = max(tokens, default=0)
        if largest >= self.vocab_size:
            raise DataProblem(
                f"{where}: token id {largest}, but the model has {self.vocab_size} embedding rows (vocab_size); the "
                "tokenizer has tokens that were added without resizing the model"
            )


def split_samples(store, options):
    """(training, held out), each in the order of the input; which sample goes where depends on the seed alone."""
    import numpy as np

    held = max(1, round(len(store) * options.val_fraction))
    if held >= len(store):
        raise DataProblem(f"--val-fraction {options.val_fraction} of {len(store)} samples leaves none to train on")
    chosen = set(np.random.default_rng(options.seed).permutation(len(store))[:held].tolist())
    kept = [i for i in range(len(store)) if i not in chosen]
    return store.select(kept), store.select(sorted(chosen))


def prepare(options, parser):
    """Makes the files and returns the summary."""
    for path in [options.model / "config.json", *options.data]:
        if not path.is_file():
            raise DataProblem(f"{path}: no such file")
    for path in filter(None, (options.out, options.val_out)):
        # Found now rather than after hours of tokenizing.
        if not os.access(path.parent, os.W_OK):
            raise OSError(errno.ENOENT, "no such folder, or no permission to write there", str(path.parent))
    config = read_json_file(options.model / "config.json")
    longest = whole_number(config, "max_position_embeddings", options.model / "config.json")
    if options.max_tokens > longest:
        parser.error(f"--max-tokens {options.max_tokens} exceeds max_position_embeddings = {longest} of the model")
    key = input_hash(options)
    reused = reusable_summary(options, key)
    if reused is not None:
        return {**reused, "reused": True}

    from token_file import SampleStore

    tokenizer = load_tokenizer(options.model)
    encoder = Encoder(tokenizer, eos_ids_of(options.model, tokenizer), options.max_tokens)
    maker = SampleMaker(encoder, SampleStore(), whole_number(config, "vocab_size", options.model / "config.json"))
    counts = ReadCounts()
    for record in read_records(options.data, options.type, counts):
        maker.add(record, kind_of(record) if options.type == "auto" else options.type)
    maker.finish()
    if len(maker.store) == 0:
        raise DataProblem(f"no samples with a token to train on in {', '.join(map(str, options.data))}")

    store, held_out = split_samples(maker.store, options) if options.val_out else (maker.store, None)
    summary = summarize(store.write(options.out), maker, counts)
    if held_out is not None:
        held = held_out.write(options.val_out)
        summary.update(val_samples=held.samples, val_tokens=held.tokens, val_trained_tokens=held.trained_tokens)
    write_sidecar(options, key, summary)
    return {**summary, "reused": False}


def summarize(written, maker, counts):
    return {
        "samples": written.samples,
        "tokens": written.tokens,
        "trained_tokens": written.trained_tokens,
        "cut_samples": maker.cut_samples,
        "cut_tokens": maker.cut_tokens,
        "untrained_samples": maker.untrained_samples,
        "blank_lines": counts.blank_lines,
    }


def main(arguments=None):
    # Nothing is ever downloaded; the tokenizer is that of the folder.
    os.environ["HF_HUB_OFFLINE"] = "1"
    parser, options = parse_arguments(arguments)
    try:
        print(json.dumps(prepare(options, parser)))
    except DataProblem as problem:
        print(f"prepare_data.py: {problem}", file=sys.stderr)
        return 4
    except OSError as error:
        print(f"prepare_data.py: {error.filename or options.out}: {error.strerror}", file=sys.stderr)
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
