"""The processes that bench/step_vs_deepspeed.py and bench/ranks_vs_peers.py measure in turn, and what each needs of the machine."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORKER = os.path.join(ROOT, "bench", "deepspeed_worker.py")
GIB = 1 << 30
STEPS_A_REQUEST = 2  # the second one is reported
ANSWER_SECONDS = 1800  # a guard against hangs; the first use of DeepSpeed compiles for minutes
ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # transparent huge pages, as our homes are on
    "THP_MEM_ALLOC_ENABLE": "1",
    "OMP_WAIT_POLICY": "passive",  # as ours
    "TORCH_EXTENSIONS_DIR": os.path.join(ROOT, ".cache", "torch_extensions"),
    "HF_HUB_OFFLINE": "1",
}
SHAPES = {
    "134m": {"hidden": 576, "inner": 1536, "layers": 30, "heads": 9, "kv_heads": 3, "vocab": 49152},
    "360m": {"hidden": 960, "inner": 2560, "layers": 32, "heads": 15, "kv_heads": 5, "vocab": 49152},
    "1b": {"hidden": 2048, "inner": 5632, "layers": 22, "heads": 32, "kv_heads": 4, "vocab": 32000},
    "tiny": {"hidden": 512, "inner": 1536, "layers": 4, "heads": 8, "kv_heads": 4, "vocab": 2048},  # to try the script
}
# Of the states; narrow: ours as a remainder and 8-bit moments, 4.03 bytes; cached: ours with a budget that keeps half.
HOMES = ("nvme", "nvme-narrow", "nvme-cached", "host")
CACHED_SHARE = 0.5


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
        {**common, "param_buffer_count": 14, "param_buffer_size": max(100_000_000, largest),
         "max_live_parameters": 2 * largest, "prefetch_bucket_size": 5_000_000},
    ]


def host_budget(shape):
    """Ours in the row that caches: gradients, half of states and weights, and what passes through."""
    return int(parameters_of(shape) * (2 + CACHED_SHARE * 14)) + 64 * (1 << 20)


def memory_need(side, home, shape):
    """Bytes of resident memory, roughly: what was measured at 134 and 360 M parameters, as a line."""
    numel = parameters_of(shape)
    if side == "ours":
        cache = host_budget(shape) if home == "nvme-cached" else 2 * numel
        return (18 * numel if home == "host" else cache) + GIB
    if side == "theirs":
        largest = max(one["param_buffer_count"] * one["param_buffer_size"] for one in buffer_settings(shape))
        buffers = 0 if home == "host" else 2 * largest
        return (26 if home == "host" else 16) * numel + buffers + 2 * GIB
    return (6 if side == "ours_compute" else 4) * numel + GIB


def disk_need(side, home, shape):
    if home == "host" or side.endswith("compute"):
        return 0
    each = 26 if side == "theirs" else 6.03 if home == "nvme-narrow" else 14
    return int(parameters_of(shape) * each)


def memory_available():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


SIDES = ("ours", "ours_compute", "theirs", "theirs_compute")
# Which run at the same time, taking turns: all where there is room, so that the machine treats them alike.
GROUPINGS = {
    "all": (SIDES,),
    "pairs": (("ours", "ours_compute"), ("theirs", "theirs_compute")),
    "alone": tuple((side,) for side in SIDES),
    "ours": (("ours", "ours_compute"),),
}


def choose_grouping(home, shape, folder):
    """The name of the first grouping that fits, and in words why not the ones before; no name where none does."""
    reasons = []
    memory, disk = memory_available(), shutil.disk_usage(folder).free
    for name, groups in GROUPINGS.items():
        need_memory = max(sum(memory_need(side, home, shape) for side in group) for group in groups)
        need_disk = max(sum(disk_need(side, home, shape) for side in group) for group in groups) + GIB
        missing = []
        if need_memory > memory:
            missing.append(f"about {need_memory / GIB:.1f} GiB of memory, {memory / GIB:.1f} are available")
        if need_disk > disk:
            missing.append(f"about {need_disk / GIB:.1f} GiB in {folder}, {disk / GIB:.1f} are free")
        if not missing:
            return name, reasons
        reasons.append(f"{name}: needs {' and '.join(missing)}")
    return None, reasons


class Side:
    """A process that takes a step for each line on its stdin and answers with a line of JSON, once it is ready()."""

    def __init__(self, words, job=None, environment=None):
        self.words = words
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **(environment or {})},
        )
        if job is not None:
            self.send(json.dumps(job))

    def ready(self):
        try:
            self.about = self.answer()  # what it says of itself
        except BaseException:
            self.kill()
            raise
        return self

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

    def cpu_seconds(self):
        """Of all threads since the start, from proc(5)."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            words = stat.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        if self.log.closed:
            return
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it is gone
        try:
            self.process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Sides:
    """Starts processes for one shape, as many tokens a step as `tokens` says. `compute`: the type of products, ours and theirs;
    auto: what ours probes once, because on a busy machine another probe may find another type."""

    def __init__(self, strata, shape, folder, tokens, compute="auto"):
        self.strata, self.shape, self.folder, self.tokens, self.compute = strata, shape, folder, tokens, compute
        if compute == "auto":
            with self.ours("compute") as side:
                self.compute = side.about["compute"]

    def start(self, name, home, buffers):
        if name.startswith("ours"):
            return self.ours("compute" if name == "ours_compute" else home)
        if name == "theirs_compute":
            return self.theirs("none", buffers)
        return self.theirs("cpu" if home == "host" else "nvme", buffers)

    def ours(self, home):
        return Side(self.words_of_ours(home), environment={"GLIBC_TUNABLES": ""}).ready()

    def theirs(self, home, buffers):
        return self.worker(WORKER, self.job_of(home, buffers)).ready()

    def words_of_ours(self, home):
        words = [self.strata, "bench", "step", "--on-request", home.split("-")[0], "--dir", self.folder]
        words += ["--recompute", "all", "--compute", self.compute]  # as theirs
        if home.endswith("-narrow"):
            words += ["--master", "remainder", "--moments", "8bit"]
        if home.endswith("-cached"):
            words += ["--host-budget", str(host_budget(self.shape))]
        words += ["--tokens", str(self.tokens)]
        for key, value in self.shape.items():
            words += ["--" + key.replace("_", "-"), str(value)]
        return words

    def job_of(self, home, buffers):
        """What a worker is to do. Its CPUs are this script's, all of them."""
        job = {"shape": self.shape, "tokens": self.tokens, "home": home, "dir": self.folder, "compute": self.compute}
        job |= {"rank": 0, "ranks": 1, "port": free_port(), "cpus": sorted(os.sched_getaffinity(0)), "buffers": buffers}
        return job

    def worker(self, script, job):
        return Side([sys.executable, script], job, {**ENVIRONMENT, "OMP_NUM_THREADS": str(len(job["cpus"]))})
