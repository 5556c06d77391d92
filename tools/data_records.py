"""Reads training records from files and says file, line and column when one is not what it should be."""

import json
from dataclasses import dataclass
from pathlib import Path

BOM = b"\xef\xbb\xbf"
TEXT_SUFFIXES = {".txt", ".text", ".md"}


class DataProblem(Exception):
    """The input is at fault; the message tells where and what to do."""


@dataclass
class Record:
    """One record: a JSON object, or {"text": ...} made of a text file. `where` is "file:line"."""

    value: dict
    where: str


@dataclass
class ReadCounts:
    blank_lines: int = 0


def decode(data, path, first_line=1):
    """Strict UTF-8. Python refuses what is overlong and what encodes surrogates."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        found = " ".join(f"{byte:02X}" for byte in data[error.start : error.start + 2])
        hint = "; this looks like UTF-16: save it as UTF-8" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise DataProblem(f"{path}:{line}: not UTF-8 (bytes {found} at byte {column} of the line){hint}") from None


def _refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def parse_json(text, path, first_line=1):
    """Like json.loads, with errors that name file, line, column and what was expected."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        what = "Expected the end of the line after the record" if error.msg == "Extra data" else error.msg
        raise DataProblem(f"{path}:{line}:{error.colno}: broken JSON: {what}{_pretty_printed_hint(text)}") from None
    except (ValueError, RecursionError) as error:
        raise DataProblem(f"{path}:{first_line}: broken JSON: {error}") from None


def _pretty_printed_hint(text):
    if "\n" in text or text.strip() not in ("{", "[", "[{"):
        return ""
    return "; is one record spread over several lines? Put each on one line (jq -c . FILE) or all in one JSON array"


def _object(value, where):
    if not isinstance(value, dict):
        names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
        raise DataProblem(f"{where}: expected a JSON object, found {names.get(type(value), 'a number')}")
    return value


def _json_records(path, counts):
    with open(path, "rb") as stream:
        start = stream.read(4096)
        if start.startswith(BOM):
            start = start[len(BOM) :]
        if start.lstrip()[:1] == b"[":
            yield from _array_records(path)
            return
        stream.seek(0)
        # Binary lines end at \n alone; text mode would also break at other characters that JSON strings may hold.
        for number, line in enumerate(stream, start=1):
            if number == 1 and line.startswith(BOM):
                line = line[len(BOM) :]
            text = decode(line, path, number).strip("\r\n \t")
            if not text:
                counts.blank_lines += 1
                continue
            where = f"{path}:{number}"
            yield Record(_object(parse_json(text, path, number), where), where)


def _array_records(path):
    text = decode(Path(path).read_bytes().removeprefix(BOM), path)
    for number, value in enumerate(parse_json(text, path), start=1):
        where = f"{path}: record {number} of the array"
        yield Record(_object(value, where), where)


def _text_record(path):
    text = decode(Path(path).read_bytes().removeprefix(BOM), path)
    if text.strip():
        yield Record({"text": text}, str(path))


def read_records(paths, kind, counts):
    """Yields the records of all files in order. A file is plain text when its suffix says so, or when `kind` is text
    and it is not named as JSON; else JSON Lines, or a JSON array when it begins with a bracket."""
    for path in paths:
        path = Path(path)
        plain = path.suffix in TEXT_SUFFIXES or (kind == "text" and path.suffix not in (".json", ".jsonl"))
        if not path.is_file():
            raise DataProblem(f"{path}: no such file")
        found = 0
        for record in _text_record(path) if plain else _json_records(path, counts):
            found += 1
            yield record
        if found == 0:
            raise DataProblem(f"{path}: no records ({path.stat().st_size} bytes, {counts.blank_lines} blank lines)")
