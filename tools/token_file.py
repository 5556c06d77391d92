"""Writes and reads the token file that docs/token-file.md specifies byte by byte."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

MAGIC = b"STRATOK1"
VERSION = 1
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("max_token", "<u4"),
        ("samples", "<u8"),
        ("tokens", "<u8"),
        ("trained_tokens", "<u8"),
        ("reserved", "<u8", 3),
    ]
)


@dataclass
class Counts:
    samples: int
    tokens: int
    trained_tokens: int


class SampleStore:
    """Samples in the order added, held as flat arrays: 5 bytes a token, not a Python object each."""

    def __init__(self):
        self._tokens = []
        self._masks = []
        self._lengths = []

    def __len__(self):
        return len(self._lengths)

    def add(self, tokens, mask):
        """`tokens` is not empty; `mask[i]` is true where token i is a target. The first token never is one."""
        mask = np.asarray(mask, dtype=np.uint8).copy()
        mask[0] = 0
        self._tokens.append(np.asarray(tokens, dtype=np.uint32))
        self._masks.append(mask)
        self._lengths.append(len(mask))

    def select(self, indices):
        """Another store with these samples, sharing their arrays."""
        chosen = SampleStore()
        for i in indices:
            chosen._tokens.append(self._tokens[i])
            chosen._masks.append(self._masks[i])
            chosen._lengths.append(self._lengths[i])
        return chosen

    def counts(self):
        trained = sum(int(mask.sum()) for mask in self._masks)
        return Counts(len(self), sum(self._lengths), trained)

    def write(self, path):
        """Under a temporary name, made durable, then renamed: a reader never sees half a file."""
        counts = self.counts()
        header = np.zeros(1, dtype=HEADER)
        header["magic"], header["version"] = MAGIC, VERSION
        header["max_token"] = max(int(tokens.max()) for tokens in self._tokens)
        header["samples"], header["tokens"] = counts.samples, counts.tokens
        header["trained_tokens"] = counts.trained_tokens
        offsets = np.zeros(counts.samples + 1, dtype="<u8")
        offsets[1:] = np.cumsum(self._lengths)
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        checksum = xxhash.xxh3_64()
        with open(temporary, "wb") as stream:
            for part in [header, offsets, *self._tokens, *self._masks]:
                data = part.tobytes()
                checksum.update(data)
                stream.write(data)
            stream.write(checksum.intdigest().to_bytes(8, "little"))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return counts


def read_samples(path):
    """[(token ids, mask)] of a token file, as lists. For tests and for looking at a file."""
    data = Path(path).read_bytes()
    header = np.frombuffer(data, dtype=HEADER, count=1)[0]
    if header["magic"] != MAGIC or header["version"] != VERSION:
        raise ValueError(f"{path}: not a token file of version {VERSION}")
    if xxhash.xxh3_64(data[:-8]).digest()[::-1] != data[-8:]:
        raise ValueError(f"{path}: the checksum does not match")
    samples, tokens = int(header["samples"]), int(header["tokens"])
    offsets = np.frombuffer(data, dtype="<u8", count=samples + 1, offset=64)
    ids = np.frombuffer(data, dtype="<u4", count=tokens, offset=64 + 8 * (samples + 1))
    mask = np.frombuffer(data, dtype="u1", count=tokens, offset=64 + 8 * (samples + 1) + 4 * tokens)
    return [(ids[a:b].tolist(), mask[a:b].tolist()) for a, b in zip(offsets[:-1], offsets[1:])]
