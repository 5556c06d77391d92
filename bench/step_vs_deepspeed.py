"""Question: what does a training step cost beyond its computing, beside DeepSpeed ZeRO-3 with the same model on the same drive?

Four processes take turns, each on all CPUs with nothing else running: ours with parameters and optimizer states on NVMe (or in
host memory), ours in memory for its computing alone, DeepSpeed with both offloaded, and transformers' forward and backward alone.
The same Llama, tokens, bf16 weights, type of products and recomputation of every block. A small sweep of DeepSpeed's buffers comes
first; the fastest is kept, and the least memory of any is what ours is compared with. Prints a table on stderr and one JSON object.

    tools/setup_bench.sh
    .cache/bench-venv/bin/python bench/step_vs_deepspeed.py --dir DIR [--shape 134m --shape 360m] [--rounds 5]

"Exposed" is a step less computing alone, both of the same round.
"""

import argparse
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORKER = os.path.join(ROOT, "bench", "deepspeed_worker.py")
GIB = 1 << 30
ANSWER_SECONDS = 900  # a guard against hangs; the first use of DeepSpeed compiles for minutes
ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # transparent huge pages, as our homes are on
    "THP_MEM_ALLOC_ENABLE": "1",
    "OMP_WAIT_POLICY": "passive",  # as ours
    "TORCH_EXTENSIONS_DIR": os.path.join(ROOT, ".cache", "torch_extensions"),
    "HF_HUB_OFFLINE": "1",
}
HOMES = ("nvme", "nvme-narrow", "host")
SHAPES = {
    "134m": {"hidden": 576, "inner": 1536, "layers": 30, "heads": 9, "kv_heads": 3, "vocab": 49152},
    "360m": {"hidden": 960, "inner": 2560, "layers": 32, "heads": 15, "kv_heads": 5, "vocab": 49152},
    "1b": {"hidden": 2048, "inner": 5632, "layers": 22, "heads": 32, "kv_heads": 4, "vocab": 32000},
    "tiny": {"hidden": 128, "inner": 384, "layers": 2, "heads": 2, "kv_heads": 1, "vocab": 1024},  # to try the script
}


def parameters_of(shape):
    head = shape["hidden"] // shape["heads"]
    attention = 2 * shape["hidden"] * head * (shape["heads"] + shape["kv_heads"])
    block = attention + 3 * shape["hidden"] * shape["inner"] + 2 * shape["hidden"]
    return shape["layers"] * block + shape["vocab"] * shape["hidden"] + shape["hidden"]


def buffer_settings(shape):
    """What is tried on NVMe. A parameter larger than one buffer is refused, so buffers begin at the embedding's size; one that is
    live holds a buffer, so DeepSpeed stops ("Not enough buffers") unless what may be live is bounded."""
    largest = shape["vocab"] * shape["hidden"]
    common = {"sub_group_size": 30_000_000, "buffer_count": 14, "reduce_bucket_size": 50_000_000}
    small = {**common, "param_buffer_size": largest, "max_live_parameters": 2 * largest}
    return [
        {**small, "param_buffer_count": 14, "prefetch_bucket_size": 5_000_000},
        {**small, "param_buffer_count": 32, "prefetch_bucket_size": 20_000_000},
        {**small, "param_buffer_count": 14, "prefetch_bucket_size": 0, "reduce_bucket_size": 10_000_000},
        {**common, "param_buffer_count": 14, "param_buffer_size": 100_000_000, "max_live_parameters": 2 * largest,
         "prefetch_bucket_size": 5_000_000},
    ]


class Side:
    """A process that takes a step for each line on its stdin and answers with a line of JSON."""

    def __init__(self, words, job=None, environment=None):
        self.words = words
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **(environment or {})},
        )
        if job is not None:
            self.send(json.dumps(job))
        self.about = self.answer()

    def send(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() says why

    def answer(self):
        guard = threading.Timer(ANSWER_SECONDS, self.process.kill)
        guard.start()
        line = self.process.stdout.readline()
        guard.cancel()
        if not line:
            self.process.wait()
            self.log.seek(0)
            tail = self.log.read().decode(errors="replace")[-3000:]
            raise RuntimeError(f"{' '.join(self.words)} ended with {self.process.returncode}:\n{tail}")
        return json.loads(line)

    def step(self):
        self.send("step")
        return self.answer()

    def peak_resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()


class Sides:
    """Starts processes for one shape."""

    def __init__(self, options, shape, folder):
        self.options, self.shape, self.folder = options, shape, folder
        self.compute = None  # the type of our products, once known

    def ours(self, home):
        words = [self.options.strata, "bench", "step", "--on-request", home.removesuffix("-narrow"), "--dir", self.folder]
        if home.endswith("-narrow"):
            words += ["--master", "remainder", "--moments", "8bit"]
        words += ["--tokens", str(self.options.tokens)]
        for key, value in self.shape.items():
            words += ["--" + key.replace("_", "-"), str(value)]
        side = Side(words, environment={"GLIBC_TUNABLES": ""})
        self.compute = side.about["compute"]
        return side

    def theirs(self, home, buffers=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        job = {"shape": self.shape, "tokens": self.options.tokens, "home": home, "dir": self.folder, "port": port}
        job |= {"compute": self.compute, "threads": len(os.sched_getaffinity(0))}
        job["buffers"] = buffers or buffer_settings(self.shape)[1]
        return Side([sys.executable, WORKER], job, {**ENVIRONMENT, "OMP_NUM_THREADS": str(job["threads"])})


def sweep(sides, steps=3):
    """Each setting with its median seconds and peak memory, or why it does not run; the fastest first."""
    tried = []
    for buffers in buffer_settings(sides.shape):
        one = {"buffers": buffers}
        try:
            with sides.theirs("nvme", buffers) as side:
                one["seconds"] = statistics.median([side.step()["seconds"] for _ in range(steps)])
                one["peak_rss_bytes"] = side.peak_resident_bytes()
        except RuntimeError as error:
            one["failed"] = str(error).strip().splitlines()[-1]
        print(f"  sweep: {json.dumps(one)}", file=sys.stderr)
        tried.append(one)
    ran = [one for one in tried if "seconds" in one]
    if not ran:
        raise RuntimeError("DeepSpeed ran with none of the settings")
    return sorted(ran, key=lambda one: one["seconds"]) + [one for one in tried if "failed" in one]


def rounds_of(sides, home, buffers, rounds):
    """{side: [step, ...]} and {side: peak bytes}; the first round is left out."""
    with sides.ours(home) as ours, sides.ours("memory") as ours_compute:
        with sides.theirs("cpu" if home == "host" else "nvme", buffers) as theirs, sides.theirs("none") as theirs_compute:
            running = {"ours": ours, "ours_compute": ours_compute, "theirs": theirs, "theirs_compute": theirs_compute}
            samples = {name: [] for name in running}
            for number in range(rounds + 1):
                for name in list(running)[:: 1 if number % 2 == 0 else -1]:
                    samples[name].append(running[name].step())
            peaks = {name: side.peak_resident_bytes() for name, side in running.items()}
            return {name: steps[1:] for name, steps in samples.items()}, peaks, ours.about


def median_and_mad(values):
    centre = statistics.median(values)
    return {"median": centre, "mad": statistics.median([abs(value - centre) for value in values]), "all": values}


def summary(samples, peaks, about):
    first = {name: steps[0]["loss"] for name, steps in samples.items()}
    # Drawn otherwise, so only nearly the same losses after as many updates; theirs alone never updates.
    if not all(0.95 < first[name] / first["ours"] < 1.05 for name in ("ours_compute", "theirs")):
        raise RuntimeError(f"the sides do not train the same: losses {first}")
    step = {side: [one["seconds"] for one in samples[side]] for side in ("ours", "theirs")}
    compute = {
        "ours": [one["forward"] + one["backward"] for one in samples["ours_compute"]],
        "theirs": [one["seconds"] for one in samples["theirs_compute"]],
    }
    exposed = {side: [a - b for a, b in zip(step[side], compute[side])] for side in step}
    out = {"parameters": about["parameters"], "compute_type": about["compute"], "losses": first}
    for side in ("ours", "theirs"):
        out[side] = {
            "seconds": median_and_mad(step[side]),
            "compute_seconds": median_and_mad(compute[side]),
            "exposed_seconds": median_and_mad(exposed[side]),
            "peak_rss_bytes": peaks[side],
        }
    out["ours"]["nvme_bytes_per_parameter"] = {
        way: samples["ours"][-1][f"nvme_{way}_bytes"] / about["parameters"] for way in ("read", "written")
    }
    out["theirs"]["optimizer_seconds"] = median_and_mad([one["optimizer"] for one in samples["theirs"]])
    out["total_ratio"] = median_and_mad([theirs / ours for ours, theirs in zip(step["ours"], step["theirs"])])
    out["exposed_ratio"] = out["ours"]["exposed_seconds"]["median"] / out["theirs"]["exposed_seconds"]["median"]
    out["peak_rss_ratio"] = peaks["ours"] / peaks["theirs"]
    return out


def print_table(name, home, result):
    print(f"{name}, states on {home}: {result['parameters']} parameters, products in {result['compute_type']}",
          file=sys.stderr)
    print("               total s (MAD)   compute s   exposed s   peak RSS GiB", file=sys.stderr)
    for side in ("ours", "theirs"):
        row = result[side]
        total = f"{row['seconds']['median']:.2f} ({row['seconds']['mad']:.2f})"
        label = "strata" if side == "ours" else "deepspeed"
        print(f"  {label:10} {total:>16} {row['compute_seconds']['median']:11.2f} "
              f"{row['exposed_seconds']['median']:11.2f} {row['peak_rss_bytes'] / GIB:14.2f}", file=sys.stderr)
    moved = result["ours"]["nvme_bytes_per_parameter"]
    print(f"  deepspeed / strata: total {result['total_ratio']['median']:.2f} "
          f"(MAD {result['total_ratio']['mad']:.2f}); strata / deepspeed: exposed {result['exposed_ratio']:.2f}, peak RSS "
          f"{result['peak_rss_ratio']:.2f}; strata moved {moved['read']:.1f} + {moved['written']:.1f} B a parameter",
          file=sys.stderr)


def available(options, shape):
    """Why a shape does not fit here, or None. DeepSpeed keeps 16 and its buffers in memory, ours in memory 16."""
    need = parameters_of(shape) * 44 + 4 * GIB
    with open("/proc/meminfo", encoding="ascii") as file:
        have = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    if have < need:
        return f"all sides together need about {need / GIB:.1f} GiB of memory, {have / GIB:.1f} are available"
    need, have = parameters_of(shape) * 40 + GIB, shutil.disk_usage(options.dir).free
    if have < need:
        return f"the swap files need about {need / GIB:.1f} GiB in {options.dir}, {have / GIB:.1f} are free"
    return None


def measure(options, name, folder):
    sides = Sides(options, SHAPES[name], folder)
    with sides.ours("memory"):
        pass  # says in which type it computes
    tried = sweep(sides) if options.sweep and options.home != ["host"] else []
    result = {"sweep": tried}
    for home in options.home:
        buffers = tried[0]["buffers"] if tried and home != "host" else None
        samples, peaks, about = rounds_of(sides, home, buffers, options.rounds)
        result[home] = summary(samples, peaks, about)
        if tried and home != "host":
            least = min(one["peak_rss_bytes"] for one in tried if "seconds" in one)
            result[home]["peak_rss_ratio_to_least"] = peaks["ours"] / min(least, peaks["theirs"])
        print_table(name, home, result[home])  # at once: what comes after may fail
    return result


def why_not(options):
    """The reason why nothing can be compared, or None."""
    for package in ("deepspeed", "transformers"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed in {sys.executable}; tools/setup_bench.sh installs it"
    if shutil.which(options.strata) is None:
        return f"there is no program {options.strata}; `make program` builds it"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, help="an existing folder on the drive")
    parser.add_argument("--strata", default=os.path.join(ROOT, "build", "release", "bin", "strata"), help="the program")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="again for another (default 134m and 360m)")
    parser.add_argument("--home", action="append", choices=HOMES,
                        help="of the states (default all); narrow: ours as a remainder and 8-bit moments, 4.03 bytes")
    parser.add_argument("--tokens", type=int, default=256, help="of a step")
    parser.add_argument("--rounds", type=int, default=5, help="measured steps of each side")
    parser.add_argument("--no-sweep", dest="sweep", action="store_false", help="one setting of DeepSpeed's buffers only")
    options = parser.parse_args()
    options.shape = options.shape or ["134m", "360m"]
    options.home = options.home or list(HOMES)
    reason = why_not(options)
    if reason is not None:
        print(json.dumps({"skipped": reason}))
        return
    results = {"tokens": options.tokens, "rounds": options.rounds, "load_before": os.getloadavg()}
    for name in options.shape:
        reason = available(options, SHAPES[name])
        if reason is not None:
            print(f"{name}: skipped: {reason}", file=sys.stderr)
            results[name] = {"skipped": reason}
            continue
        with tempfile.TemporaryDirectory(prefix="strata-bench-", dir=options.dir) as folder:
            results[name] = measure(options, name, folder)
    results["load_after"] = os.getloadavg()
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
