"""Question: how many parameters a second does torch's fused AdamW update on a GPU?

Prints one JSON line: rates of several measurements in fp32, which move 28 bytes a parameter, as Strata's update of a bf16
parameter with fp32 states does. Usage: torch_adam.py [numel [rounds]]
"""

import json
import sys


def main(numel=1 << 26, rounds=7, repeats=20):
    try:
        import torch
    except ImportError as error:
        return {"skipped": f"{error}"}
    if not torch.cuda.is_available():
        return {"skipped": "torch sees no GPU"}
    param = torch.full((numel,), 0.05, device="cuda", requires_grad=True)
    param.grad = torch.full((numel,), 0.01, device="cuda")
    optimizer = torch.optim.AdamW([param], lr=1e-4, weight_decay=0.01, fused=True)
    rates = []
    for _ in range(rounds + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(repeats):
            optimizer.step()
        end.record()
        torch.cuda.synchronize()
        rates.append(numel * repeats / (start.elapsed_time(end) / 1000))
    return {"params_per_second": rates[1:], "numel": numel, "torch": torch.__version__}  # the first one warms up


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
