"""What the CUDA kernels take of a device, as the compiler says: no GPU is needed, and nothing here has run on one.

    kernel_resources.py build/release [--all] [--cuobjdump PATH]

Compiles kernels/*.cu once more with the build's own commands and prints a table: registers and theoretical occupancy per
architecture, bytes that an element moves, and the time that moving those of 1e9 elements takes at the memory bandwidth of
three devices. Kernels of fp16 only with --all: they move what those of bf16 move.
Exits with 1 where complaints() has any. Needs nvcc and c++filt; cuobjdump, which nvcc installations may lack, comes with
triton.
"""

import argparse
import collections
import importlib.util
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

# Of a multiprocessor.
REGISTERS = 65536
PARTITIONS = 4  # each has its share of the registers
REGISTER_UNIT = 256  # a warp gets multiples of it
THREADS = {"sm_80": 2048, "sm_86": 1536, "sm_89": 1536, "sm_90": 2048, "sm_100": 2048, "sm_120": 1536}
BLOCK = 256  # kThreads of kernels/launch.h

BANDWIDTH = {"A100 40GB": 1555e9, "RTX 4090": 1008e9, "H100 SXM": 3350e9}  # bytes per second, by the data sheets

SIZES = {"F32": 4, "Bf16": 2, "F16": 2}

Resources = collections.namedtuple("Resources", "registers stack spills")


def short_name(mangled):
    """UpdateBody<WithMaster<Bf16>, Fp32Moments>, from a kernel's symbol."""
    done = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True)
    name = re.sub(r"(strata|kernels|encoding)::|\(strata::BlockCode\)", "", done.stdout.strip())
    match = re.match(r"void (?:grid|warp)_kernel<(.*) ?>\(", name)
    return re.sub(r" >", ">", match.group(1)).strip() if match else name


def parse_ptxas(text):
    """{(architecture, symbol): Resources} from what ptxas -v prints."""
    found, at, stack, spills = {}, None, 0, 0
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            at = (match.group(2), match.group(1))
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, spills = int(match.group(1)), int(match.group(2)) + int(match.group(3))
        elif (match := re.search(r"Used (\d+) registers", line)) and at:
            found[at] = Resources(int(match.group(1)), stack, spills)
            at = None
    return found


def parse_sass(text):
    """{(architecture, symbol): Counter of mnemonics} from what cuobjdump -sass prints."""
    found, arch, at = {}, None, None
    for line in text.splitlines():
        if match := re.search(r"arch = (\w+)", line):
            arch = match.group(1)
        elif match := re.search(r"Function : (\w+)", line):
            at = found.setdefault((arch, match.group(1)), collections.Counter())
        elif (match := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", line)) and at is not None:
            at[match.group(1)] += 1
    return found


def wide_accesses(name):
    """Which 128-bit accesses a kernel must have: those of its widest arrays."""
    if name.startswith(("UpdateBody", "UpdateBlock8Body")):
        return ["LDG.E.128", "STG.E.128"]
    if name.startswith("SumLanesBody"):
        return ["LDG.E.128"]
    if name.startswith("SumRowsBody"):
        return ["LDG.E.128", "STG.E.128"]
    if match := re.match(r"ConvertBody<(\w+), (\w+), (\w+)>", name):
        operation, to, source = match.groups()
        widest = max(SIZES[to], SIZES[source])
        loads = SIZES[source] == widest or operation == "Accumulate"
        return (["LDG.E.128"] if loads else []) + (["STG.E.128"] if SIZES[to] == widest else [])
    return []


def complaints(resources, sass):
    """What is wrong with kernels, given by their short names."""
    found = []
    for (arch, name), used in sorted(resources.items()):
        if used.stack or used.spills:
            found.append(f"{name} on {arch}: {used.stack} bytes of stack, {used.spills} bytes spilled")
    for (arch, name), mnemonics in sorted(sass.items()):
        local = [word for word in mnemonics if word.startswith(("LDL", "STL"))]
        missing = [word for word in wide_accesses(name) if not any(m.startswith(word) for m in mnemonics)]
        if local:
            found.append(f"{name} on {arch}: local memory ({', '.join(local)})")
        if missing:
            found.append(f"{name} on {arch}: no {' or '.join(missing)}")
    return found


def bytes_per_parameter(name):
    """What one element moves to and from the device's memory: of updates by AdamW, with a gradient of the parameter's type."""
    storages = {"OwnMaster": 4 + 8, "WithMaster<Bf16>": 2 + 8 + 2, "WithMaster<F16>": 2 + 8 + 2, "WithRemainder": 2 + 4 + 4}
    moments = {"Fp32Moments": 16, "Bf16Moments": 8}
    if match := re.match(r"UpdateBody<(.*), (\w+)>", name):
        return storages[match.group(1)] + moments[match.group(2)]
    if match := re.match(r"UpdateBlock8Body<(.*)>", name):
        return storages[match.group(1)] + 2 * (2 + 2 * 4 / 256)
    if match := re.match(r"ConvertBody<(\w+), (\w+), (\w+)>", name):
        operation, to, source = match.groups()
        return SIZES[source] + SIZES[to] * (2 if operation == "Accumulate" else 1)
    if match := re.match(r"SumLanesBody<(\w+)>", name):
        return SIZES[match.group(1)]
    if match := re.match(r"SumRowsBody<(\w+)>", name):
        return SIZES[match.group(1)] * 3  # two rows are read, one is written
    if match := re.match(r"QuantizeBody<(\d), (\w+)>", name):
        return SIZES[match.group(2)] + (1, 0.5)[int(match.group(1))] + 4 / 256
    if match := re.match(r"DequantizeBody<(\d), (\w+), (\w+)>", name):
        return SIZES[match.group(2)] * (2 if match.group(3) == "true" else 1) + (1, 0.5)[int(match.group(1))] + 4 / 256
    return None


def occupancy(registers, arch):
    """Threads that a multiprocessor can hold, as a share of the most."""
    of_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    warps = REGISTERS // PARTITIONS // of_warp * PARTITIONS
    blocks = min(warps * 32 // BLOCK, THREADS[arch] // BLOCK)
    return blocks * BLOCK / THREADS[arch]


def commands(build):
    """(source, command, folder) for each kernel file, as the build compiles it."""
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["file"])
        if source.suffix == ".cu" and source.parent.name == "kernels":
            yield source, shlex.split(entry["command"]), entry["directory"]


def find_cuobjdump(given=None):
    """The path of a cuobjdump, or None."""
    if given or shutil.which("cuobjdump"):
        return given or shutil.which("cuobjdump")
    triton = importlib.util.find_spec("triton")
    folders = triton.submodule_search_locations if triton else []
    paths = [pathlib.Path(folder) / "backends" / "nvidia" / "bin" / "cuobjdump" for folder in folders]
    return next((str(path) for path in paths if path.exists()), None)


def measure(build, cuobjdump=None):
    """Resources and mnemonics of every kernel, by architecture and short name. Without cuobjdump no mnemonics."""
    resources, sass = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for source, command, directory in commands(build):
            target = pathlib.Path(folder) / (source.name + ".o")
            command[command.index("-o") + 1] = str(target)
            done = subprocess.run(command + ["-Xptxas=-v"], cwd=directory, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{source}: {done.stdout}{done.stderr}")
            resources.update(parse_ptxas(done.stdout + done.stderr))
            if cuobjdump:
                dump = subprocess.run([cuobjdump, "-sass", str(target)], capture_output=True, text=True, check=True)
                sass.update(parse_sass(dump.stdout))
    if not resources:
        raise RuntimeError(f"{build} has no kernels: configure it where nvcc is found, with STRATA_WITH_CUDA")
    names = {symbol: short_name(symbol) for _, symbol in list(resources) + list(sass)}
    return tuple({(arch, names[symbol]): value for (arch, symbol), value in found.items()} for found in (resources, sass))


def table(resources, names):
    """Markdown, a row for each of the kernels."""
    arches = list(THREADS)
    numbers = "/".join(arch.removeprefix("sm_") for arch in arches)
    columns = ["kernel", f"registers, sm_{numbers}", "occupancy, %", "bytes", *(f"{device}, ms" for device in BANDWIDTH)]
    lines = [" | ".join(columns), " | ".join(["---"] * len(columns))]
    for name in sorted(names, key=lambda name: (not name.startswith("Update"), name)):
        registers = [resources[arch, name].registers for arch in arches]
        shares = [f"{100 * occupancy(r, arch):.0f}" for r, arch in zip(registers, arches)]
        moved = bytes_per_parameter(name)
        times = [f"{moved * 1e12 / bandwidth:.2f}" for bandwidth in BANDWIDTH.values()]
        lines.append(" | ".join([f"`{name}`", "/".join(map(str, registers)), "/".join(shares), f"{moved:.4g}", *times]))
    return "\n".join(f"| {line} |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="build folder with compile_commands.json")
    parser.add_argument("--all", action="store_true", help="also kernels of fp16")
    parser.add_argument("--cuobjdump", help="where it is not on the PATH")
    arguments = parser.parse_args()
    cuobjdump = find_cuobjdump(arguments.cuobjdump)
    resources, sass = measure(arguments.build, cuobjdump)
    print(table(resources, {name for _, name in resources if arguments.all or "F16" not in name.replace("Bf16", "")}))
    if not cuobjdump:
        print("no cuobjdump: local memory and 128-bit accesses were not looked for", file=sys.stderr)
    found = complaints(resources, sass)
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
