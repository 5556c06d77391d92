"""Question: how much faster is the fused CPU AdamW than torch's fused AdamW with the casts that mixed precision needs?

Both update fp32 states from a bf16 gradient and leave a bf16 parameter. Rounds alternate: one of ours, one of torch's,
same number of parameters and threads, huge pages on both sides. Prints medians and the paired ratios.

    python bench/adam_vs_torch.py --ours "build/release/src/cli/strata bench adam --json" --numel 67108864 --threads 2
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import time

os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # read by torch when it allocates; our side advises huge pages too
import torch  # noqa: E402


class TorchStep:
    """One mixed-precision step of torch on the CPU: gradient to fp32, fused AdamW, parameter to bf16."""

    def __init__(self, numel):
        self.grad = torch.full((numel,), 0.01, dtype=torch.bfloat16)
        self.param = torch.zeros(numel, dtype=torch.bfloat16)
        self.master = torch.nn.Parameter(torch.full((numel,), 0.1))
        self.master.grad = torch.zeros(numel)
        self.optimizer = torch.optim.AdamW([self.master], lr=1e-4, weight_decay=0.01, fused=True)

    def run(self):
        """Returns M parameters/s."""
        start = time.perf_counter()
        self.master.grad.copy_(self.grad)
        self.optimizer.step()
        with torch.no_grad():
            self.param.copy_(self.master)
        return self.param.numel() / (time.perf_counter() - start) / 1e6


def run_ours(command, numel, threads):
    arguments = ["--numel", str(numel), "--threads", str(threads), "--rounds", "1"]
    output = subprocess.run([*shlex.split(command), *arguments], check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="command that prints the JSON of `strata bench adam --json`")
    parser.add_argument("--numel", type=int, default=2**26)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    theirs_step = TorchStep(options.numel)
    theirs_step.run()  # makes the states
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(run_ours(options.ours, options.numel, options.threads)["fused"]["median"])
        theirs.append(theirs_step.run())
    ratios = [a / b for a, b in zip(ours, theirs)]
    print(f"{options.numel} parameters, {options.threads} threads, {options.rounds} rounds, M parameters/s")
    print(f"  ours           {statistics.median(ours):7.0f}")
    print(f"  torch + casts  {statistics.median(theirs):7.0f}  (torch {torch.__version__}, fused=True)")
    print(f"  ratio          {statistics.median(ratios):7.2f}  worst round {min(ratios):.2f}")


if __name__ == "__main__":
    main()
