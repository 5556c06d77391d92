"""The parts of tools/device_check.sh."""

import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from device_context import ROOT, Failed, NoGpu, Skipped


def facts(context):
    if shutil.which("nvidia-smi"):
        query = "name,memory.total,memory.free,driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.max.mem"
        context.figures["nvidia_smi"] = context.run("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader",
                                                    expect=range(256)).strip()
    context.figures["cpus"] = len(os.sched_getaffinity(0))
    if context.program():
        context.figures["findings"] = {subject: {key: finding[key] for key in ("verdict", "text", "facts")}
                                       for subject, finding in context.findings().items()}
    if context.why_no_gpu():
        raise Failed(f"no GPU: {context.why_no_gpu()}")


def build(context):
    targets = ["strata", "strata_cuda", "gpu_tests", "nccl_tests"]
    if context.build != ROOT / "build" / "release":
        raise Skipped(f"STRATA_BUILD names {context.build}, which is used as it is")
    if not shutil.which("cmake"):
        raise Skipped("there is no cmake; what is built is used")
    cache = context.build / "CMakeCache.txt"
    if cache.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text():
        raise Skipped(f"{context.build} was configured in another place; it is used as it is")
    if not (context.build / "build.ninja").exists():
        context.run("cmake", "--preset", "release", "-Wno-dev", f"-DSTRATA_PYTHON={sys.executable}")
    listed = context.run("cmake", "--build", context.build, "--target", "help")
    there = [target for target in targets if f"\n{target}:" in listed]
    context.run("cmake", "--build", context.build, "-j", len(os.sched_getaffinity(0)), "--target", *there)
    context.figures["targets"] = there
    if "strata_cuda" not in there:
        raise Failed("no CUDA plug-in: there is no nvcc")


def run_gtest(context, binary, filter_text, *, before=()):
    """Runs tests and notes how many there were and which failed."""
    path = context.test(binary)
    if not path:
        raise Skipped(f"there is no {binary} in {context.build}")
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        context.run(*before, path, f"--gtest_filter={filter_text}", f"--gtest_output=json:{report.name}",
                    "--gtest_brief=1", expect=(0, 1))
        suites = json.loads(Path(report.name).read_text())["testsuites"]
    tests = [(f"{suite['name']}.{test['name']}", test) for suite in suites for test in suite["testsuite"]]
    ran = [name for name, test in tests if test.get("result") == "COMPLETED"]
    failed = [name for name, test in tests if test.get("failures")]
    skipped = [name for name, test in tests if test.get("result") == "SKIPPED"]
    context.figures.update({"ran": len(ran), "failed": failed, "skipped": len(skipped)})
    if failed:
        raise Failed(f"{len(failed)} of {len(tests)} tests failed, the first is {failed[0]}")
    if not ran:
        raise Skipped("no test ran: all were skipped" if skipped else f"no test is named {filter_text}")


def contract(context):
    run_gtest(context, "gpu_tests", "GpuFacts*:*DeviceContract*:*ShardOptimizerContract*:GpuShardMath.*Refuses*:"
                                    "GpuShardMath.*NonFinite*")


def kernels(context):
    run_gtest(context, "gpu_tests", "*/GpuOptimizer.*:GpuShardMath.*")


def nccl(context):
    findings = context.findings()
    if not findings["NCCL"]["facts"]["built_in"]:
        raise Skipped("the CUDA plug-in is built without NCCL")
    run_gtest(context, "nccl_tests", "*")
    gpus = sum(subject.startswith("GPU ") for subject in findings)
    if gpus < 2:
        context.figures["ranks"] = "one GPU: NCCL takes one rank on each"
        return
    with tempfile.TemporaryDirectory() as folder:
        config = run_config(context, Path(folder), model_shape("tiny"), tokens=64, device="2GiB", host="2GiB")
        measured = context.strata_json("bench", "step", "--nproc=2", "--config", config, "--rounds", "1")
    context.figures["ranks"] = {key: measured[key] for key in ("ranks", "zero_stage", "tokens") if key in measured}


def sanitizer(context):
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not tool:
        raise Skipped("compute-sanitizer is not installed")
    small = "*ShardOptimizerContract.DecaysOnly*/adamw*:GpuShardMath.AddsSquares*:GpuShardMath.*NonFinite*"
    # A call that fails and is answered by the program is no finding.
    for name, quiet in (("memcheck", ("--report-api-errors", "no")), ("racecheck", ())):
        try:
            run_gtest(context, "gpu_tests", small, before=(tool, "--tool", name, "--error-exitcode", "9", *quiet))
        except Failed as failed:
            raise Failed(f"{name}: {failed}") from None
        context.figures[name] = context.figures["ran"]


SHAPES = {  # hidden, inner, layers, heads, key and value heads, vocabulary
    "tiny": (256, 704, 4, 4, 4, 1024),
    "135m": (576, 1536, 30, 9, 3, 49152),  # SmolLM2
    "7b": (4096, 11008, 32, 32, 32, 32000),
}


def model_shape(name):
    hidden, inner, layers, heads, kv_heads, vocab = SHAPES[name]
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}


def run_config(context, folder, shape, *, tokens, device, host, homes=("nvme", "host", "nvme"), narrow=False):
    """Writes a model's config.json and a run.yaml on the GPU; returns the path of the latter."""
    (folder / "swap").mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    strata = {"device": "cuda", "budgets": {"device": device, "host": host}, "nvme": {"paths": [str(folder / "swap")]},
              "placement": dict(zip(("param", "grad", "optimizer"), homes))}
    if narrow:
        strata["optimizer_states"] = {"master": "remainder", "moments": "8bit"}
    path = folder / "run.yaml"
    path.write_text(json.dumps({"model_name_or_path": str(folder), "max_seq_length": tokens, "max_grad_norm": 0,
                                "per_device_train_batch_size": 1, "learning_rate": 1e-4, "strata": strata}))
    return path


def scratch(context):
    """A folder on the drive of the repository, or where STRATA_CHECK_DIR says; removed at the end of the with block."""
    return tempfile.TemporaryDirectory(prefix="strata-check-", dir=os.environ.get("STRATA_CHECK_DIR", ROOT))


PLACEMENTS = {"drive": ("nvme", "host", "nvme"), "host": ("host", "host", "host"), "device": ("device", "host", "host")}


def engine(context):
    """The same losses wherever parameters and states live, and a run of the program from `init` on."""
    shape, tokens = model_shape("tiny" if context.tiny else "135m"), 64 if context.tiny else 256
    losses = {}
    with scratch(context) as name:
        for placement, homes in PLACEMENTS.items():
            config = run_config(context, Path(name), shape, tokens=tokens, device="2GiB", host="4GiB", homes=homes)
            measured = context.strata_json("bench", "step", "--config", config, "--alone", "--rounds", "4")
            losses[placement] = measured["losses"]
        context.figures["losses"] = losses
        context.figures["equal"] = all(other == losses["drive"] for other in losses.values())
        context.figures["train"] = train(context, Path(name), config, tokens, shape["vocab_size"])
    if not context.figures["equal"]:
        raise Failed("losses differ between placements")
    if not losses["drive"][-1] < losses["drive"][0]:
        raise Failed("the loss does not fall on a batch that is repeated")


def train(context, folder, config, tokens, vocab):
    """Losses of `strata init` and `strata train` on random tokens, or why there are none."""
    missing = [package for package in ("numpy", "xxhash") if not importlib.util.find_spec(package)]
    if missing:
        return f"skipped: writing a token file needs {' and '.join(missing)}"
    import numpy
    from token_file import SampleStore

    store = SampleStore()
    for i in range(4):
        store.add(numpy.random.default_rng(i).integers(0, vocab, tokens), numpy.ones(tokens))
    store.write(folder / "data.tok")
    context.strata("init", "--config", folder / "config.json", "--out", folder / "model")
    context.strata("train", "--config", config, "--model", folder / "model", "--data", folder / "data.tok", "--output-dir",
                   folder / "out", "--max-steps", "4", "--lr-scheduler-type", "constant", "--save-strategy", "no",
                   *(word for key, home in zip(("param", "grad", "optimizer"), PLACEMENTS["drive"])
                     for word in (f"--strata.placement.{key}", home)))
    return [json.loads(line)["loss"] for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]


ENCODINGS = "fp32,remainder,bf16,8bit,remainder+bf16,remainder+8bit"


def numel_of(context):
    return 100_000 if context.tiny else 1 << 27


def bench_adam(context):
    result = context.strata_json("bench", "adam", "--device", "cuda", "--states", ENCODINGS, "--numel", numel_of(context),
                                 "--rounds", "2" if context.tiny else "7")
    for name, row in result["states"].items():
        context.figures[name] = {key: row[key]["median"] for key in
                                 ("params_per_second", "bytes_per_second", "copy_bytes_per_second", "over_copy")}
        if row["over_memory"]:
            context.figures[name]["over_memory"] = row["over_memory"]["median"]
        context.bar(f"{name}: bytes a second over a copy's", row["over_copy"]["median"], result["bar"])
    context.check_bars()


def bench_link(context):
    # At 256 MiB a measurement lasts 5 ms, in which waking a thread shows.
    small = ("--sizes", "64KiB,1MiB", "--bytes", "1MiB", "--rounds", "2") if context.tiny else ("--bytes", "1GiB")
    result = context.strata_json("bench", "link", "--device", "cuda", *small)
    context.figures["rows"] = [{"bytes": row["bytes"], "direction": row["direction"],
                                "bytes_per_second": row["bytes_per_second"]["median"],
                                "over_bare": row["over_bare"]["median"]} for row in result["rows"]]
    largest = max(row["bytes"] for row in result["rows"])
    for row in result["rows"]:
        if row["bytes"] == largest:  # a small copy is bound by the calls
            context.bar(f"{row['direction']} over bare copies", row["over_bare"]["median"], result["bar"])
    context.check_bars()


def bench_step(context):
    shape, tokens = model_shape("tiny" if context.tiny else "135m"), 64 if context.tiny else 2048
    with scratch(context) as name:
        config = run_config(context, Path(name), shape, tokens=tokens, device="512MiB" if context.tiny else "8GiB",
                            host="64MiB" if context.tiny else "1GiB")
        result = context.strata_json("bench", "step", "--config", config, "--rounds", "1" if context.tiny else "5")
    context.figures.update({key: result[key] for key in (
        "parameters", "tokens", "total_seconds", "compute_seconds", "exposed_seconds", "ratio", "ratio_to_ideal",
        "binding_link", "recomputed_layers", "bits_equal", "peak_rss_bytes")})
    if not result["bits_equal"]:
        raise Failed("the step on the drive has another loss or norm than the step in memory")


def torch_adam(context):
    """Ours and torch's take turns, each in a process of its own."""
    numel, rounds = numel_of(context), 2 if context.tiny else 5
    ratios, torch_rates, our_rates = [], [], []
    for _ in range(1 if context.tiny else 3):
        theirs = json.loads(context.run(sys.executable, ROOT / "bench" / "torch_adam.py", numel, rounds))
        if "skipped" in theirs:
            raise Skipped(theirs["skipped"])
        ours = context.strata_json("bench", "adam", "--device", "cuda", "--states", "fp32", "--numel", numel, "--rounds",
                                   rounds)["states"]["fp32"]["params_per_second"]["median"]
        our_rates.append(ours)
        torch_rates.append(statistics.median(theirs["params_per_second"]))
        ratios.append(ours / torch_rates[-1])
    context.figures.update({"params_per_second": statistics.median(our_rates), "torch": theirs["torch"],
                            "torch_params_per_second": statistics.median(torch_rates)})
    context.bar("parameters a second over torch's fused AdamW", statistics.median(ratios), 1.0)
    context.check_bars()


def free_bytes(folder):
    return shutil.disk_usage(folder).free


def seven_b(context):
    """Weights in host memory, narrow states on the drive, nothing at home on the device."""
    shape, tokens = model_shape("tiny" if context.tiny else "7b"), 64 if context.tiny else 2048
    with scratch(context) as name:
        if not context.tiny and free_bytes(name) < 32 << 30:
            raise Skipped(f"{free_bytes(name) >> 30} GiB of disk are free in {Path(name).parent}, 32 are needed")
        config = run_config(context, Path(name), shape, tokens=tokens, device="256MiB" if context.tiny else "24GiB",
                            host="256MiB" if context.tiny else "32GiB", homes=("host", "host", "nvme"), narrow=True)
        result = context.strata_json("bench", "step", "--config", config, "--alone", "--rounds", "3")
    context.figures.update({"parameters": result["parameters"], "tokens": result["tokens"],
                            "step_seconds": result["step"]["seconds"], "stall_seconds": result["step"]["stall"],
                            "losses": result["losses"], "peak_rss_bytes": result["peak_rss_bytes"],
                            **{key: result[key] for key in ("ideal_seconds", "ideal_fraction", "binding_link",
                                                            "recomputed_layers", "to_device_bytes", "to_host_bytes")}})
    if result["ideal_fraction"] is not None:
        context.bar("ideal over step", result["ideal_fraction"], 0.9)
    context.check_bars()


@dataclass
class Part:
    name: str
    work: Callable
    limit: int  # seconds
    about: str
    needs_gpu: bool = True

    def run(self, context):
        # facts fails without a GPU, as its finding; the others have nothing to say then.
        if self.needs_gpu and self.work is not facts and context.why_no_gpu():
            raise NoGpu(f"no GPU: {context.why_no_gpu()}")
        self.work(context)


PARTS = [
    Part("facts", facts, 60, "the GPU, the driver and what the program finds"),
    Part("build", build, 400, "program, plug-in and tests in build/release", needs_gpu=False),
    Part("contract", contract, 120, "contract suites of device, streams, optimizers and arithmetic"),
    Part("kernels", kernels, 90, "the bits of the CPU, for every encoding and operation"),
    Part("nccl", nccl, 60, "process groups of NCCL, and two ranks where there are two GPUs"),
    Part("sanitizer", sanitizer, 120, "compute-sanitizer's memcheck and racecheck over some kernels"),
    Part("engine", engine, 150, "the same losses with states on the drive, in host and in device memory; init and train"),
    Part("bench-adam", bench_adam, 45, "the optimizer beside copies in device memory"),
    Part("bench-link", bench_link, 45, "copies both ways beside bare cudaMemcpyAsync"),
    Part("bench-step", bench_step, 150, "a step with states on the drive beside the step in memory"),
    Part("torch-adam", torch_adam, 60, "the optimizer beside torch's fused AdamW"),
    Part("seven-b", seven_b, 240, "three steps of a 7 B Llama with 24 GiB of the device and 32 GiB of host memory"),
]
