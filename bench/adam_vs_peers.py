"""Question: how much faster is the fused CPU AdamW than the ones people use, with the casts that mixed precision needs?

All work in one process on one set of torch tensors (`bench/adam_shared.cpp` takes their addresses), with the same threads
and huge pages on both sides. Rounds alternate, each round measures everything once, in an order that rotates. Prints
medians, paired ratios and worst rounds; with --json one object per size with the keys numel, threads, rounds,
params_per_second, ceiling_params_per_second, peers {name: params_per_second}.

    python bench/adam_vs_peers.py --library build/release/bench/libstrata_adam_shared.so --numel 134217728 268435456

Peers are what can be imported: torch always, deepspeed (tools/requirements-bench.txt), bitsandbytes and torchao
(tools/requirements-bench-adam.txt). The 8-bit ones are slow and measured at --numel-8bit only.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
import time

os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # read by torch when it allocates
os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch  # noqa: E402

LR, DECAY = 1e-4, 0.01


def address(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


class Buffers:
    """What every fp32-state optimizer here shares: bf16 gradient and parameter, fp32 gradient, master and moments."""

    def __init__(self, numel):
        self.numel = numel
        self.grad = torch.full((numel,), 0.01, dtype=torch.bfloat16)
        self.param = torch.zeros(numel, dtype=torch.bfloat16)
        self.grad32 = torch.full((numel,), 0.01)
        self.master = torch.nn.Parameter(torch.full((numel,), 0.1))
        self.exp_avg = torch.full((numel,), 1e-3)
        self.exp_avg_sq = torch.full((numel,), 1e-6)
        self.master.grad = self.grad32


class Ours:
    def __init__(self, library, threads, buffers, param, grad, states, encodings=("fp32", "fp32")):
        self.library, self.buffers, self.param, self.grad = library, buffers, param, grad
        self.session = library.strata_adam_open(*[name.encode() for name in encodings], threads)
        self.states = (ctypes.c_void_p * len(states))(*[state.data_ptr() for state in states])
        self.keep = states
        self.step_number = 0

    def run(self):
        """Returns seconds."""
        names = {torch.bfloat16: b"BF16", torch.float32: b"F32"}
        self.step_number += 1
        seconds = self.library.strata_adam_step(
            self.session, self.step_number, names[self.param.dtype], address(self.param), names[self.grad.dtype],
            address(self.grad), self.states, self.param.numel())
        if seconds < 0:
            sys.exit("the step failed")
        return seconds


class Peer:
    """Another library's optimizer over the shared master, with casts or without."""

    def __init__(self, buffers, optimizer, casts):
        self.buffers, self.optimizer, self.casts = buffers, optimizer, casts
        self.optimizer.step()  # makes the states
        state = self.optimizer.state[buffers.master]
        for name in ("exp_avg", "exp_avg_sq"):
            if name in state and state[name].dtype == torch.float32:
                state[name] = getattr(buffers, name)

    def run(self):
        buffers = self.buffers
        start = time.perf_counter()
        if self.casts:
            buffers.grad32.copy_(buffers.grad)
        self.optimizer.step()
        if self.casts:
            with torch.no_grad():
                buffers.param.copy_(buffers.master)
        return time.perf_counter() - start


def torch_adamw(params):
    return torch.optim.AdamW(params, lr=LR, weight_decay=DECAY, fused=True)


def deepspeed_adamw(params):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam(params, lr=LR, weight_decay=DECAY, adamw_mode=True)


def bitsandbytes_adamw(params):
    import bitsandbytes
    return bitsandbytes.optim.AdamW8bit(params, lr=LR, weight_decay=DECAY)


def torchao_adamw(params):
    from torchao.optim import AdamW8bit
    return AdamW8bit(params, lr=LR, weight_decay=DECAY)


def contenders(library, threads, buffers, eight_bit):
    """Pairs of (name, run). The first is ours; names of peers say what they are compared with."""
    b = buffers
    fused = Ours(library, threads, b, b.param, b.grad, [b.master, b.exp_avg, b.exp_avg_sq])
    found = {"ours": fused.run}
    if eight_bit:
        blocks = (b.numel + 255) // 256
        codes = [torch.zeros(b.numel, dtype=torch.uint8) for _ in range(2)]
        scales = [torch.zeros(blocks) for _ in range(2)]
        states = [b.master, codes[0], scales[0], codes[1], scales[1]]
        found["ours 8-bit"] = Ours(library, threads, b, b.param, b.grad, states, ("fp32", "8bit")).run
        peers = {"bitsandbytes 8-bit": (bitsandbytes_adamw, True), "torchao 8-bit": (torchao_adamw, True)}
    else:
        found["ours plain fp32"] = Ours(library, threads, b, b.master, b.grad32, [b.exp_avg, b.exp_avg_sq]).run
        found["ceiling"] = lambda: library.strata_adam_ceiling(
            fused.session, *[address(t) for t in (b.param, b.grad, b.master, b.exp_avg, b.exp_avg_sq)], b.numel)
        peers = {"torch + casts": (torch_adamw, True), "torch plain fp32": (torch_adamw, False),
                 "deepspeed + casts": (deepspeed_adamw, True), "deepspeed plain fp32": (deepspeed_adamw, False)}
    for name, (make, casts) in peers.items():
        try:
            found[name] = Peer(b, make([b.master]), casts).run
        except Exception as error:  # not installed, or it does not build here
            print(f"  {name}: left out ({type(error).__name__}: {str(error).splitlines()[0]})", file=sys.stderr)
    return found


def measure(runs, numel, rounds):
    """Returns {name: [parameters per second of each round]}; the first round warms up and is dropped."""
    rates = {name: [] for name in runs}
    for number in range(rounds + 1):
        names = list(runs)
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds = runs[name]()
            if number > 0:
                rates[name].append(numel / seconds)
    return rates


def reference_of(name):
    return "ours plain fp32" if "plain" in name else "ours 8-bit" if "8-bit" in name else "ours"


def report(numel, threads, rounds, rates):
    print(f"{numel} parameters, {threads} threads, median of {rounds} rounds, M parameters/s (torch {torch.__version__})")
    for name, values in rates.items():
        line = f"  {name:22s} {statistics.median(values) / 1e6:8.1f}"
        if name != reference_of(name) and name != "ceiling":
            ratios = [ours / theirs for ours, theirs in zip(rates[reference_of(name)], values)]
            line += f"   {reference_of(name)} is {statistics.median(ratios):.2f}x, worst round {min(ratios):.2f}x"
        if name == "ceiling":
            ratios = [ours / best for ours, best in zip(rates["ours"], values)]
            line += f"   ours / ceiling {statistics.median(ratios):.3f}, worst round {min(ratios):.3f}"
        print(line)


def as_json(numel, threads, rounds, rates):
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ours = medians.get("ours 8-bit", medians["ours"])
    return {"numel": numel, "threads": threads, "rounds": rounds, "params_per_second": ours,
            "ceiling_params_per_second": medians.get("ceiling"),
            "peers": {name: value for name, value in medians.items() if not name.startswith(("ours", "ceiling"))},
            "ours": {name: value for name, value in medians.items() if name.startswith("ours")}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libstrata_adam_shared.so")
    parser.add_argument("--numel", type=int, nargs="*", default=[2**24, 2**27, 2**28])
    parser.add_argument("--numel-8bit", type=int, default=2**24, help="size for the 8-bit peers; 0 leaves them out")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    library = ctypes.CDLL(os.path.abspath(options.library))
    library.strata_adam_open.restype = ctypes.c_void_p
    library.strata_adam_open.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    library.strata_adam_step.restype = ctypes.c_double
    library.strata_adam_step.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p,
                                         ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    library.strata_adam_ceiling.restype = ctypes.c_double
    library.strata_adam_ceiling.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_size_t]

    torch.set_num_threads(options.threads)
    results = []
    for numel, eight_bit in [(n, False) for n in options.numel] + [(options.numel_8bit, True)]:
        if numel == 0:
            continue
        buffers = Buffers(numel)
        rates = measure(contenders(library, options.threads, buffers, eight_bit), numel, options.rounds)
        if not options.json:
            report(numel, options.threads, options.rounds, rates)
        results.append(as_json(numel, options.threads, options.rounds, rates))
        del buffers
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
