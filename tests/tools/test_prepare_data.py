"""The program: options, exit codes, cache, files."""

import json
import shutil

import pytest

DATA = "".join(json.dumps({"input_ids": [i, i + 1]}) + "\n" for i in range(2, 42))


def test_the_same_inputs_and_options_are_reused(prepare, tmp_path):
    first = prepare(DATA)
    written = (tmp_path / "out.tok").stat().st_mtime_ns
    second = prepare(DATA)

    assert not first.summary["reused"] and second.summary["reused"]
    assert {**second.summary, "reused": False} == first.summary
    assert (tmp_path / "out.tok").stat().st_mtime_ns == written


def test_another_input_option_or_tokenizer_is_not_reused(prepare, model_folder, tmp_path):
    template = tmp_path / "other"
    shutil.copytree(model_folder, template)
    (template / "chat_template.jinja").write_text("{{ messages }}")

    prepare(DATA)
    assert not prepare(DATA + json.dumps({"input_ids": [1, 2]})).summary["reused"]
    assert not prepare(DATA).summary["reused"]
    assert not prepare(DATA, "--max-tokens", "64").summary["reused"]
    assert not prepare(DATA, "--max-tokens", "64", model=template).summary["reused"]


def test_a_damaged_file_is_made_again(prepare, tmp_path):
    expected = prepare(DATA).samples
    out = tmp_path / "out.tok"
    out.write_bytes(out.read_bytes()[:-1])

    result = prepare(DATA)

    assert not result.summary["reused"] and result.samples == expected


def test_nothing_is_left_under_temporary_names(prepare, tmp_path):
    prepare(DATA)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "out.tok", "out.tok.json"]


def test_a_failure_leaves_the_earlier_file(prepare, tmp_path):
    prepare(DATA)
    before = (tmp_path / "out.tok").read_bytes()

    assert prepare(DATA + "{").code == 4
    assert (tmp_path / "out.tok").read_bytes() == before


def test_held_out_samples_are_the_rest_in_order(prepare, tmp_path):
    from token_file import read_samples

    everything = prepare(DATA).samples
    split = ("--val-fraction", "0.25", "--val-out", str(tmp_path / "val.tok"))
    result = prepare(DATA, *split, "--seed", "3")
    held_out = read_samples(tmp_path / "val.tok")

    assert result.summary["val_samples"] == len(held_out) == 10
    assert sorted(result.samples + held_out) == sorted(everything)
    assert result.samples == sorted(result.samples) and held_out == sorted(held_out)
    prepare(DATA, *split, "--seed", "4")
    assert read_samples(tmp_path / "val.tok") != held_out


def test_a_split_that_leaves_nothing_to_train_on_is_refused(prepare, tmp_path):
    one = json.dumps({"input_ids": [1, 2]})

    result = prepare(one, "--val-fraction", "0.5", "--val-out", str(tmp_path / "val.tok"))

    assert result.code == 4 and "leaves none to train on" in result.error


@pytest.mark.parametrize(
    "options",
    [
        ("--max-tokens", "1"),
        ("--max-tokens", "many"),
        ("--max-tokens", "513"),
        ("--val-fraction", "1"),
        ("--val-fraction", "0.5"),
        ("--type", "parquet"),
        ("--unknown",),
    ],
)
def test_wrong_options_exit_with_2(prepare, options):
    assert prepare(DATA, *options).code == 2


def test_a_length_above_the_positions_of_the_model_is_refused_with_both(prepare):
    error = prepare(DATA, "--max-tokens", "513").error

    assert "513" in error and "512" in error


def test_a_folder_without_a_tokenizer_is_refused_with_the_remedy(prepare, model_folder, tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    shutil.copy(model_folder / "config.json", folder)

    result = prepare(DATA, model=folder)

    assert result.code == 4 and "tokenizer" in result.error


def test_an_unreadable_tokenizer_is_refused_with_the_remedy(prepare, model_folder, tmp_path):
    folder = tmp_path / "sentencepiece"
    folder.mkdir()
    shutil.copy(model_folder / "config.json", folder)
    (folder / "tokenizer.model").write_bytes(b"not a sentencepiece model")

    result = prepare(DATA, model=folder)

    assert result.code == 4 and "save_pretrained" in result.error


def test_merges_as_pairs_and_as_strings_give_the_same_ids(prepare, model_folder, tmp_path):
    path = tmp_path / "strings"
    shutil.copytree(model_folder, path)
    content = json.loads((path / "tokenizer.json").read_text())
    merges = content["model"]["merges"]
    content["model"]["merges"] = [" ".join(pair) if isinstance(pair, list) else pair.split(" ") for pair in merges]
    (path / "tokenizer.json").write_text(json.dumps(content))
    text = json.dumps({"text": "The tokenizer of the parameter file."})

    assert prepare(text, model=path).samples == prepare(text).samples


def test_an_unwritable_place_exits_with_5_and_is_named(prepare, tmp_path):
    result = prepare(DATA, "--out", str(tmp_path / "absent" / "out.tok"))

    assert result.code == 5 and "absent: no such folder" in result.error


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"[]", "expected a JSON object"),
        (b"{", "broken JSON"),
        (b"\xff", "not UTF-8"),
        (b'{"max_position_embeddings": "512"}', 'max_position_embeddings is "512"'),
        (b'{"max_position_embeddings": 512}', "vocab_size is null"),
    ],
)
def test_a_config_that_cannot_be_used_is_named(prepare, model_folder, tmp_path, content, what):
    folder = tmp_path / "broken"
    shutil.copytree(model_folder, folder)
    (folder / "config.json").write_bytes(content)

    result = prepare(DATA, model=folder)

    assert result.code == 4 and "config.json" in result.error and what in result.error


def test_the_help_names_every_exit_code(prepare, capsys):
    import prepare_data

    with pytest.raises(SystemExit):
        prepare_data.main(["--help"])
    assert "Exit codes: 0 done, 2 usage" in capsys.readouterr().out
