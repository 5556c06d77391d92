"""What the program says to bad input: one line, a fitting exit code, and nothing left behind.

Run by ctest, or by hand: STRATA_BIN=build/bin/strata python -m pytest tests/integration/test_bad_input.py
"""

import json
import os
import shutil
import struct
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from strata_program import change_tensors, homes, run_strata, train_options, words_of, write_tokens

USAGE, DOES_NOT_FIT, BAD_DATA, IO_FAILED, DEVICE_FAILED = 2, 3, 4, 5, 6


@dataclass
class Trial:
    """A run that works; a mutation spoils one thing of it."""

    root: Path
    options: dict
    extra: list = field(default_factory=list)  # words after the options

    model = property(lambda self: self.root / "model")
    data = property(lambda self: self.root / "data.tok")
    out = property(lambda self: self.root / "out")
    nvme = property(lambda self: self.root / "nvme")

    @property
    def weights(self):
        return self.model / "model.safetensors"

    def set_config(self, **keys):
        path = self.model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))

    def rewrite(self, change):
        """Applies `change` to the tensors of the model."""
        change_tensors(self.weights, change)


@pytest.fixture
def trial(tiny, tmp_path):
    made = Trial(tmp_path, {})
    shutil.copytree(tiny("llama", with_tokenizer=True), made.model)
    write_tokens(made.data, (9, 31))
    made.nvme.mkdir()
    (tmp_path / "cwd").mkdir()
    made.options = train_options(made.model, made.data, made.out, max_steps=1)
    made.options |= {"strata.nvme.paths": made.nvme, "strata.budgets.nvme": "64MiB"}
    return made


def run(trial):
    return run_strata("train", *words_of(trial.options), *trial.extra, cwd=trial.root / "cwd")


def listing(root):
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


# --- The mutations ------------------------------------------------------------------------------------------------


def truncate(trial):
    with open(trial.weights, "r+b") as file:
        file.truncate(trial.weights.stat().st_size - 1000)


def corrupt_header(trial):
    data = bytearray(trial.weights.read_bytes())
    data[8:12] = b"!!!!"
    trial.weights.write_bytes(data)


def huge_header(trial):
    trial.weights.write_bytes(struct.pack("<Q", 1 << 62) + trial.weights.read_bytes()[8:])


def wrong_shape(trial):
    trial.rewrite(lambda t: t.update({"model.norm.weight": t["model.norm.weight"][:-1].clone()}))


def integer_weights(trial):
    trial.rewrite(lambda t: t.update({"model.norm.weight": t["model.norm.weight"].int()}))


def unequal_tied_head(trial):
    trial.set_config(tie_word_embeddings=True)


def empty_text(trial):
    path = trial.root / "empty.txt"
    path.write_text("")
    trial.options["data"] = path


def blank_text(trial):
    path = trial.root / "blank.txt"
    path.write_text("\n  \n\t\n" * 5)
    trial.options["data"] = path


def blank_records(trial):
    path = trial.root / "blank.jsonl"
    path.write_text('{"prompt": "", "completion": ""}\n' * 3)
    trial.options["data"] = path


def broken_json_line(trial):
    path = trial.root / "broken.jsonl"
    path.write_text('{"text": "fine"}\n{"text": "not\n')
    trial.options["data"] = path


def damaged_tokens(trial):
    data = bytearray(trial.data.read_bytes())
    data[-20] ^= 1
    trial.data.write_bytes(data)


def nvme_is_a_file(trial):
    path = trial.root / "a_file"
    path.write_text("x")
    trial.options |= {"strata.nvme.paths": path, **homes("nvme", "host", "nvme")}


def no_nvme_folder(trial):
    trial.options |= {"strata.nvme.paths": "/nowhere/at/all", **homes("nvme", "host", "nvme")}


def no_nvme_paths(trial):
    for key in ("strata.nvme.paths", "strata.budgets.nvme"):
        del trial.options[key]
    trial.options |= homes("nvme", "host", "nvme")


def unreadable_yaml(trial):
    path = trial.root / "run.yaml"
    path.write_text("model: [unclosed\n  data: x: y\n")
    trial.extra = ["--config", path]


def unknown_yaml_key(trial):
    path = trial.root / "run.yaml"
    path.write_text("learning_rat: 1e-5\n")
    trial.extra = ["--config", path]


def old_checkpoints(trial):
    (trial.out / "checkpoint-5").mkdir(parents=True)
    (trial.out / "checkpoint-5" / "strata.json").write_text("{}")


def output_is_a_file(trial):
    trial.out.write_text("x")


def options(**changes):
    """A mutation of options; `__` stands for the dot."""
    return lambda trial: trial.options.update({key.replace("__", "."): value for key, value in changes.items()})


def words(*extra):
    return lambda trial: trial.extra.extend(extra)


CASES = {
    # name: (mutation, exit code, words in the message)
    "no_model_folder": (lambda s: shutil.rmtree(s.model), BAD_DATA, ["model", "no such"]),
    "no_config": (lambda s: (s.model / "config.json").unlink(), BAD_DATA, ["config.json"]),
    "config_is_no_json": (lambda s: (s.model / "config.json").write_text("{"), BAD_DATA, ["config.json"]),
    "no_weights": (lambda s: s.weights.unlink(), BAD_DATA, ["safetensors"]),
    "truncated_weights": (truncate, BAD_DATA, ["model.safetensors"]),
    "corrupt_header": (corrupt_header, BAD_DATA, ["model.safetensors", "header"]),
    "huge_header": (huge_header, BAD_DATA, ["model.safetensors", "header"]),
    "absent_tensor": (
        lambda s: s.rewrite(lambda t: t.pop("model.layers.1.mlp.up_proj.weight")), BAD_DATA,
        ["model.layers.1.mlp.up_proj.weight", "absent"],
    ),
    "wrong_shape": (wrong_shape, BAD_DATA, ["model.norm.weight", "[55]", "[56]"]),
    "integer_weights": (integer_weights, BAD_DATA, ["model.norm.weight", "I32", "BF16"]),
    "tied_heads_that_differ": (unequal_tied_head, BAD_DATA, ["lm_head.weight", "tie_word_embeddings"]),
    "unknown_architecture": (
        lambda s: s.set_config(architectures=["BertForMaskedLM"], model_type="bert"), BAD_DATA,
        ["bert", "llama", "qwen3"],
    ),
    "unknown_rope_type": (
        lambda s: s.set_config(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}), BAD_DATA, ["spiral"]
    ),
    "empty_text": (empty_text, BAD_DATA, ["empty.txt"]),
    "blank_text": (blank_text, BAD_DATA, ["blank.txt"]),
    "blank_records": (blank_records, BAD_DATA, ["blank.jsonl"]),
    "broken_json_line": (broken_json_line, BAD_DATA, ["broken.jsonl", "2"]),
    "no_such_data": (options(data="nowhere.txt"), BAD_DATA, ["nowhere.txt"]),
    "no_such_token_file": (options(data="nowhere.tok"), BAD_DATA, ["nowhere.tok"]),
    "damaged_token_file": (damaged_tokens, BAD_DATA, ["data.tok", "checksum"]),
    "token_outside_the_vocabulary": (
        lambda s: write_tokens(s.data, (), tokens=[[3, 4, 1003, 5]]), BAD_DATA, ["1003", "vocab_size"]
    ),
    "all_labels_masked": (lambda s: write_tokens(s.data, (9, 31), masked={0, 1}), BAD_DATA, ["masked"]),
    "no_nvme_folder": (no_nvme_folder, USAGE, ["nvme.paths", "/nowhere/at/all"]),
    "nvme_is_a_file": (nvme_is_a_file, USAGE, ["nvme.paths", "a_file"]),
    "nvme_home_without_paths": (no_nvme_paths, USAGE, ["strata.nvme.paths"]),
    "misspelt_option": (words("--learning-rat", "1e-5"), USAGE, ["learning-rat", "learning_rate"]),
    "option_twice": (words("--learning-rate", "1e-5"), USAGE, ["learning", "twice"]),
    "option_twice_by_two_names": (words("--lr", "1e-5"), USAGE, ["learning", "twice"]),
    "option_without_value": (words("--seed"), USAGE, ["seed"]),
    "word_for_a_number": (words("--seed", "many"), USAGE, ["seed", "many"]),
    "unreadable_yaml": (unreadable_yaml, USAGE, ["run.yaml"]),
    "unknown_yaml_key": (unknown_yaml_key, USAGE, ["run.yaml", "learning_rat", "learning_rate"]),
    "no_such_yaml": (words("--config", "nowhere.yaml"), USAGE, ["nowhere.yaml"]),
    "sequence_longer_than_positions": (
        options(max_seq_length=513), USAGE, ["max_seq_length", "513", "max_position_embeddings", "512"]
    ),
    "old_checkpoints": (old_checkpoints, USAGE, ["checkpoint", "resume_from_checkpoint", "overwrite_output_dir"]),
    "output_is_a_file": (output_is_a_file, IO_FAILED, ["out"]),
    "resume_from_nowhere": (options(resume_from_checkpoint="nowhere/checkpoint-3"), BAD_DATA, ["checkpoint-3"]),
    "budget_beyond_the_machine": (options(strata__budgets__host="900TiB"), DOES_NOT_FIT, ["strata.budgets", "host"]),
    "budget_too_small": (options(strata__budgets__device="100KiB"), DOES_NOT_FIT, ["smallest", "device"]),
}


def assert_polite(result, trial, code, expected_words, before):
    message = result.err
    assert result.code == code, f"exit code {result.code}, expected {code}\n{message}"
    assert message.count("strata: error: ") == 1, message
    for trace in ("Traceback", "terminate called", "what():", "c10::", "Exception raised from", "core dumped"):
        assert trace not in message, message
    said = message[message.index("strata: error: "):] if "see above" not in message else message
    for word in expected_words:
        assert word in said, f"`{word}` is not in: {said}"
    assert list(trial.nvme.iterdir()) == []
    assert list((trial.root / "cwd").iterdir()) == []
    left = {name for name in listing(trial.root) if name not in before}
    assert left <= {"out/config.yaml"}, left
    changed = {name for name, time in before.items() if listing(trial.root).get(name) != time}
    assert not changed, changed


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named_in_one_line_and_nothing_stays_behind(name, trial):
    mutation, code, expected_words = CASES[name]
    mutation(trial)
    before = listing(trial.root)
    assert_polite(run(trial), trial, code, expected_words, before)


def test_the_run_that_the_mutations_spoil_works(trial):
    result = run(trial)
    assert result.code == 0, result.err


def test_a_gpu_that_cannot_be_used_is_told_before_the_data_is_read(trial, monkeypatch):
    monkeypatch.setenv("STRATA_CUDA_PLUGIN", "no_such_plugin.so")
    trial.options |= {"data": "nowhere.txt", "strata.device": "cuda"}
    before = listing(trial.root)
    assert_polite(run(trial), trial, DEVICE_FAILED, ["no GPU can be used", "no_such_plugin.so", "strata.device: host"], before)
    result = run_strata("eval", "--model", trial.model, "--data", "nowhere.txt", "--device", "cuda", cwd=trial.root / "cwd")
    assert_polite(result, trial, DEVICE_FAILED, ["no GPU can be used", "no_such_plugin.so"], before)


# --- Folders that refuse ------------------------------------------------------------------------------------------


@contextmanager
def mounted_tmpfs(folder, options):
    """A small tmpfs on `folder`, where the test may mount one; otherwise the test is skipped and says so."""
    command = ["mount", "-t", "tmpfs", "-o", options, "strata_test", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no mount program")
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_full_nvme_folder_is_an_error_that_names_it(trial):
    trial.options |= homes("nvme", "host", "nvme")
    with mounted_tmpfs(trial.nvme, "size=512k"):
        before = listing(trial.root)
        # Seen at the start, so that nobody loses an hour of training.
        assert_polite(run(trial), trial, DOES_NOT_FIT, [str(trial.nvme), "free"], before)


def test_read_only_nvme_folder_is_an_error_that_names_it(trial):
    trial.options |= homes("nvme", "host", "nvme")
    with mounted_tmpfs(trial.nvme, "size=100m,ro"):
        before = listing(trial.root)
        assert_polite(run(trial), trial, IO_FAILED, [str(trial.nvme)], before)


def test_read_only_output_folder_is_an_error_that_names_it(trial):
    trial.out.mkdir()
    with mounted_tmpfs(trial.out, "size=100m,ro"):
        before = listing(trial.root)
        assert_polite(run(trial), trial, IO_FAILED, [str(trial.out)], before)


def test_full_output_folder_is_refused_before_training(trial):
    trial.out.mkdir()
    with mounted_tmpfs(trial.out, "size=1m"):
        before = listing(trial.root)
        assert_polite(run(trial), trial, DOES_NOT_FIT, [str(trial.out), "free"], before)


def test_nvme_folder_without_rights_is_an_error_that_names_it(trial):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    trial.options |= homes("nvme", "host", "nvme")
    trial.nvme.chmod(0o500)
    before = listing(trial.root)
    assert_polite(run(trial), trial, IO_FAILED, [str(trial.nvme)], before)
