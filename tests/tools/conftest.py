import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

VOCAB_SIZE = 1003


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A folder with config.json and a byte-level BPE tokenizer with a chat template, but no weights."""
    from tiny_models import make_tokenizer

    folder = tmp_path_factory.mktemp("model")
    make_tokenizer(folder)
    config = {"model_type": "llama", "vocab_size": VOCAB_SIZE, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def tokenizer(model_folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder)


class Prepared:
    """What one run of prepare_data gave: exit code, summary, error text, samples."""

    def __init__(self, code, summary, error, samples):
        self.code, self.summary, self.error, self.samples = code, summary, error, samples


@pytest.fixture
def prepare(model_folder, tmp_path, capsys):
    """prepare(data, *options) writes `data` (text or bytes) to a file, prepares it and returns what came of it."""
    import prepare_data
    from token_file import read_samples

    def run(data, *options, name="data.jsonl", model=model_folder):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        out = tmp_path / "out.tok"
        command = ["--model", str(model), "--data", str(path), "--out", str(out)]
        if "--max-tokens" not in options:
            command += ["--max-tokens", "128"]
        capsys.readouterr()
        try:
            code = prepare_data.main([*command, *options])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        summary = json.loads(captured.out) if code == 0 else None
        return Prepared(code, summary, captured.err, read_samples(out) if code == 0 else None)

    return run
