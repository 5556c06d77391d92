"""Input files that are not what they should be: each is refused with its place, or read right."""

import json

import pytest

TWO = b'{"text": "one"}\n{"text": "two"}\n'


def test_blank_lines_are_skipped_and_counted(prepare):
    plain = prepare(TWO)
    blank = prepare(b'\n{"text": "one"}\n   \n\r\n{"text": "two"}\n\t\n\n')

    assert blank.summary["blank_lines"] == 5
    assert blank.samples == plain.samples


def test_a_missing_final_newline_loses_nothing(prepare):
    assert prepare(TWO[:-1]).samples == prepare(TWO).samples


def test_crlf_lines_read_like_lf_lines(prepare):
    assert prepare(TWO.replace(b"\n", b"\r\n")).samples == prepare(TWO).samples


@pytest.mark.parametrize("name", ["data.jsonl", "data.txt"])
def test_a_byte_order_mark_is_stripped(prepare, name):
    assert prepare(b"\xef\xbb\xbf" + TWO, name=name).samples == prepare(TWO, name=name).samples


def test_a_byte_order_mark_in_the_middle_is_data(prepare, tokenizer):
    result = prepare('{"text": "a\ufeffb"}')

    assert tokenizer.decode(result.samples[0][0], skip_special_tokens=True) == "a\ufeffb"


def test_line_separators_inside_strings_do_not_end_a_record(prepare, tokenizer):
    result = prepare('{"text": "a\u2028b\x85c"}')

    assert tokenizer.decode(result.samples[0][0], skip_special_tokens=True) == "a\u2028b\x85c"


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80"])
def test_invalid_utf8_is_refused_with_file_and_line(prepare, bad):
    lines = prepare(b'{"text": "one"}\n{"text": "' + bad + b'"}\n')
    text = prepare(b"one\ntwo\n" + bad + b"\n", name="data.txt")

    assert lines.code == 4 and "data.jsonl:2: not UTF-8" in lines.error
    assert text.code == 4 and "data.txt:3: not UTF-8" in text.error
    assert "byte 11 of the line" in lines.error and "byte 1 of the line" in text.error


def test_utf16_is_named(prepare):
    result = prepare(TWO.decode().encode("utf-16"))

    assert result.code == 4 and "looks like UTF-16" in result.error


@pytest.mark.parametrize(
    ("line", "place", "what"),
    [
        (b'{"text": "a"', ":2:13:", "delimiter"),
        (b'{"text": "a",}', ":2:1", ""),
        (b'{"text": "a"} {"text": "b"}', ":2:15:", "Expected the end of the line"),
        (b'{"text": "a\x01b"}', ":2:12:", "Invalid control character"),
        (b'{"text": NaN}', ":2:", "NaN is not JSON"),
    ],
)
def test_broken_json_is_refused_with_line_column_and_expectation(prepare, line, place, what):
    result = prepare(b'{"text": "one"}\n' + line + b"\n")

    assert result.code == 4
    assert "data.jsonl" + place in result.error
    assert what in result.error


def test_pretty_printed_json_gets_a_hint(prepare):
    result = prepare(b'{\n  "text": "one"\n}\n')

    assert result.code == 4 and "data.jsonl:1:" in result.error and "jq -c" in result.error


def test_a_json_array_is_accepted(prepare):
    records = [{"text": "one"}, {"text": "two"}]

    assert prepare(json.dumps(records, indent=1), name="data.json").samples == prepare(TWO).samples


def test_a_broken_array_is_refused_with_line_and_column(prepare):
    result = prepare('[\n {"text": "one"},\n {"text": }\n]', name="data.json")

    assert result.code == 4 and "data.json:3:11:" in result.error


@pytest.mark.parametrize(
    ("line", "found"), [("3", "a number"), ("null", "null"), ('"x"', "a string"), ("true", "true or false")]
)
def test_a_line_that_is_no_object_is_refused(prepare, line, found):
    result = prepare('{"text": "one"}\n' + line)

    assert result.code == 4 and f"data.jsonl:2: expected a JSON object, found {found}" in result.error


def test_an_array_entry_that_is_no_object_is_refused(prepare):
    result = prepare('[{"text": "one"}, 3]')

    assert result.code == 4 and "record 2 of the array: expected a JSON object, found a number" in result.error


def test_a_lone_surrogate_is_refused(prepare):
    result = prepare('{"text": "one"}\n{"text": "a\\ud83d"}')

    assert result.code == 4 and "data.jsonl:2: text holds a lone surrogate \\ud83d" in result.error


def test_a_surrogate_pair_is_one_character(prepare):
    assert prepare('{"text": "\\ud83d\\ude00"}').samples == prepare('{"text": "\U0001f600"}').samples


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\n \n", b"[]"])
def test_a_file_without_records_is_refused(prepare, data):
    result = prepare(data)

    assert result.code == 4 and "no records" in result.error


def test_an_empty_text_file_is_refused(prepare):
    assert prepare(b" \n", name="data.txt").code == 4


def test_a_record_of_unknown_shape_lists_what_is_known(prepare):
    result = prepare('{"question": "?", "answer": "!"}')

    assert result.code == 4
    assert "data.jsonl:1" in result.error and "answer, question" in result.error
    assert "prompt + completion" in result.error


def test_a_long_line_is_one_record(prepare):
    words = "word " * 200_000

    result = prepare(json.dumps({"text": words}))

    assert result.code == 0
    assert sum(len(tokens) for tokens, _ in result.samples) == result.summary["tokens"] > 200_000


def test_a_missing_data_file_is_named(model_folder, tmp_path, capsys):
    import prepare_data

    options = ["--model", model_folder, "--data", tmp_path / "no.jsonl", "--max-tokens", 8, "--out", tmp_path / "o"]
    code = prepare_data.main([str(option) for option in options])

    assert code == 4 and "no.jsonl: no such file" in capsys.readouterr().err
