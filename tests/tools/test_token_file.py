"""The writer of token files against the bytes of the specification."""

import re
from pathlib import Path

import pytest
from token_file import SampleStore, read_samples

SPECIFICATION = Path(__file__).resolve().parents[2] / "docs" / "token-file.md"


def example():
    rows = re.findall(r"^[0-9a-f]{2}  ((?:[0-9a-f]{2} ?)+)$", SPECIFICATION.read_text(), re.MULTILINE)
    return bytes.fromhex(" ".join(rows))


def test_the_bytes_are_those_of_the_example_in_the_specification(tmp_path):
    store = SampleStore()
    store.add([5, 6, 7], [0, 1, 1])
    store.add([9, 300], [0, 1])

    counts = store.write(tmp_path / "x.tok")

    assert (counts.samples, counts.tokens, counts.trained_tokens) == (2, 5, 3)
    assert len(example()) == 121 and (tmp_path / "x.tok").read_bytes() == example()


def test_what_is_written_is_read_back(tmp_path):
    (tmp_path / "x.tok").write_bytes(example())

    assert read_samples(tmp_path / "x.tok") == [([5, 6, 7], [0, 1, 1]), ([9, 300], [0, 1])]


def test_a_first_token_is_never_a_target(tmp_path):
    store = SampleStore()
    store.add([5, 6], [1, 1])
    store.write(tmp_path / "x.tok")

    assert read_samples(tmp_path / "x.tok") == [([5, 6], [0, 1])]


def test_a_changed_byte_is_found(tmp_path):
    damaged = bytearray(example())
    damaged[90] ^= 1
    (tmp_path / "x.tok").write_bytes(damaged)

    with pytest.raises(ValueError, match="checksum"):
        read_samples(tmp_path / "x.tok")
