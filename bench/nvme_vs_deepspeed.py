"""Question: how fast is the NVMe store beside DeepSpeed's aio handle on the same drive?

Rounds alternate: one run of `strata bench nvme`, one write and one read through the handle; the same bytes, block size and
depth, O_DIRECT, one pinned buffer on huge pages, and the same rest of the drive before each. Prints one JSON object with
the medians in GiB/s, the paired ratios (store / handle) and their 95 % intervals.

    tools/setup_bench.sh
    .cache/bench-venv/bin/python bench/nvme_vs_deepspeed.py --dir DIR
"""

import argparse
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GIB = 1 << 30
IDLE_SECONDS = 0.5  # as `strata bench nvme`
PATTERNS = ("write", "read")
ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # the handle's buffers on transparent huge pages, as the store's are
    "DS_ACCELERATOR": "cpu",
    "TORCH_EXTENSIONS_DIR": os.path.join(ROOT, ".cache", "torch_extensions"),  # the handle is compiled at its first use
}


class Handle:
    """DeepSpeed's asynchronous I/O, set to its best: no wait between submitting and reaping."""

    def __init__(self, folder, options):
        import torch
        from deepspeed.ops.op_builder import AsyncIOBuilder

        self.handle = AsyncIOBuilder().load().aio_handle(options.block_bytes, options.queue_depth, False, True, 1)
        self.buffer = self.handle.new_cpu_locked_tensor(options.bytes, torch.empty(0, dtype=torch.uint8))
        self.buffer.copy_(torch.randint(0, 256, (options.bytes,), dtype=torch.uint8))
        self.file = os.path.join(folder, "aio")
        self.run("write")  # lays out the file
        self.run("read")

    def run(self, pattern):
        """GiB/s."""
        move = self.handle.sync_pwrite if pattern == "write" else self.handle.sync_pread
        time.sleep(IDLE_SECONDS)
        start = time.perf_counter()
        if move(self.buffer, self.file) != 1:
            raise RuntimeError(f"the {pattern} of the aio handle failed")
        return self.buffer.numel() / (time.perf_counter() - start) / GIB


def run_store(options):
    """GiB/s by pattern."""
    words = [options.strata, "bench", "nvme", "--json", "--no-fio", "--rounds", "1", "--dir", options.dir]
    words += ["--bytes", str(options.bytes), "--block-bytes", str(options.block_bytes)]
    words += ["--queue-depth", str(options.queue_depth)]
    environment = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"}
    result = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, env=environment).stdout)
    return {pattern: result[f"{pattern}_gib_s"] for pattern in PATTERNS}


def median_interval(values):
    """As median_interval() in bench/statistics.h."""
    values, n, k, below = sorted(values), len(values), 0, 0.5 ** len(values)
    while below <= 0.025 and k < n // 2:
        k += 1
        below += math.comb(n, k) * 0.5**n
    skipped = max(k - 1, 0)
    return [values[skipped], values[n - 1 - skipped]]


def measure(options, folder):
    handle = Handle(folder, options)
    samples = {pattern: {"store": [], "deepspeed": []} for pattern in PATTERNS}
    for number in range(options.rounds):
        for side in ("store", "deepspeed") if number % 2 == 0 else ("deepspeed", "store"):
            rates = run_store(options) if side == "store" else {pattern: handle.run(pattern) for pattern in PATTERNS}
            for pattern in PATTERNS:
                samples[pattern][side].append(rates[pattern])
    return samples


def report(samples, options):
    out = {key: getattr(options, key) for key in ("dir", "bytes", "block_bytes", "rounds")}
    out["depth"] = options.queue_depth
    for pattern, sides in samples.items():
        ratios = [ours / theirs for ours, theirs in zip(sides["store"], sides["deepspeed"])]
        out[f"{pattern}_gib_s"] = statistics.median(sides["store"])
        out[f"deepspeed_{pattern}_gib_s"] = statistics.median(sides["deepspeed"])
        out[f"{pattern}_ratio_median"] = statistics.median(ratios)
        out[f"{pattern}_ratio_interval"] = median_interval(ratios)
    out["samples"] = samples
    return out


def why_not(options):
    """The reason why nothing can be compared, or None."""
    if importlib.util.find_spec("deepspeed") is None:
        return f"deepspeed is not installed in {sys.executable}; tools/setup_bench.sh installs it"
    if shutil.which(options.strata) is None:
        return f"there is no program {options.strata}; `make program` builds it"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, help="an existing folder on the drive")
    parser.add_argument("--strata", default=os.path.join(ROOT, "build", "release", "bin", "strata"), help="the program")
    parser.add_argument("--bytes", type=int, default=256 << 20, help="moved per measurement")
    parser.add_argument("--block-bytes", type=int, default=1 << 20, help="largest request")
    parser.add_argument("--queue-depth", type=int, default=32, help="requests in flight")
    parser.add_argument("--rounds", type=int, default=10, help="measurements of each")
    options = parser.parse_args()
    reason = why_not(options)
    if reason is not None:
        print(json.dumps({"skipped": reason}))
        return
    if any(os.environ.get(key) != value for key, value in ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    # DeepSpeed and the compiler talk on stdout; it is kept for the result.
    stdout = os.dup(1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="strata-bench-", dir=options.dir) as folder:
        result = report(measure(options, folder), options)
    os.write(stdout, (json.dumps(result, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
