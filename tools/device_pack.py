"""Copies what was built to a folder that runs where the libraries of this machine are not installed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

# Every machine with a GPU and torch has these, in versions of its own.
THERE = re.compile(r"/(ld-linux|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|cuda|nv|nccl|cu[a-z]+|torch|c10|gomp)[-.\d_])|/torch/|/nvidia/")


def needed_libraries(binary, environment):
    """Paths of the shared libraries that `binary` loads and another machine may lack."""
    listing = subprocess.run(["ldd", binary], capture_output=True, text=True, env=environment, check=True).stdout
    paths = re.findall(r"=> (/\S+)", listing)
    return {Path(path) for path in paths if not THERE.search(path)}


def pack(context, folder):
    folder = Path(folder)
    binaries = [path for path in (context.program(), context.test("gpu_tests"), context.test("nccl_tests")) if path]
    plugin = context.built("lib/libstrata_cuda.so")
    if not context.program() or not plugin:
        print(f"device_check: {context.build} has no program or no CUDA plug-in: build them first", file=sys.stderr)
        return 1
    for name in ("bin", "lib"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    libraries = set()
    for binary in [*binaries, plugin]:
        libraries |= needed_libraries(binary, context.environment())
    copies = [(path, folder / "bin") for path in binaries] + [(path, folder / "lib") for path in [plugin, *libraries]]
    for source, target in copies:
        copied = Path(shutil.copy(source, target / source.name))
        copied.chmod(0o755)
        if source in binaries or source == plugin:
            subprocess.run(["strip", "--strip-unneeded", copied], check=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"device_check: {size / 2**20:.0f} MiB in {folder}; there: STRATA_BUILD={folder} tools/device_check.sh",
          file=sys.stderr)
    return 0
