#!/usr/bin/env python3
"""Text to token ids and back, with the model's own tokenizer.json. For prompts and samples of `strata`.

    tokenizer.py encode --model DIR TEXT      prints the ids, separated by blanks
    tokenizer.py decode --model DIR ID...     prints the text

Exit codes: 2 usage, 4 the folder has no tokenizer.json.
"""
import argparse
import pathlib
import sys


def load(model: str):
    from tokenizers import Tokenizer

    path = pathlib.Path(model) / "tokenizer.json"
    if not path.is_file():
        print(f"{path}: missing; a folder with only a sentencepiece model needs conversion by transformers "
              "(AutoTokenizer.from_pretrained(...).save_pretrained(...))", file=sys.stderr)
        sys.exit(4)
    return Tokenizer.from_file(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("encode", "decode"):
        command = commands.add_parser(name)
        command.add_argument("--model", required=True)
        command.add_argument("values", nargs="*")
    args = parser.parse_args()
    tokenizer = load(args.model)
    if args.command == "encode":
        print(*tokenizer.encode(" ".join(args.values)).ids)
    else:
        print(tokenizer.decode([int(v) for v in args.values]))


if __name__ == "__main__":
    main()
