"""CpuAdamW against torch.optim.AdamW itself, through a small program that works on raw files."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import torch

ORACLE = sys.argv.pop() if len(sys.argv) > 1 else "adamw_oracle"
NUMEL = 40_003
UNIT = 2.0**-24  # relative error of one fp32 rounding


def run_both(steps, lr, betas, eps, weight_decay, grad_size):
    """Returns (torch's parameter, its state, ours as a dict of tensors) after the same steps on the same numbers."""
    generator = torch.Generator().manual_seed(7)
    master = torch.randn(NUMEL, generator=generator) * 0.05
    grads = (torch.randn(steps, NUMEL, generator=generator) * grad_size).bfloat16()

    param = torch.nn.Parameter(master.clone())
    optimizer = torch.optim.AdamW([param], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, foreach=False)
    for grad in grads:
        param.grad = grad.float()
        optimizer.step()

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        master.numpy().tofile(folder / "master.f32")
        grads.view(torch.int16).numpy().tofile(folder / "grads.bf16")
        numbers = [steps, lr, *betas, eps, weight_decay]
        subprocess.run([ORACLE, name, *[repr(number) for number in numbers]], check=True)
        ours = {key: torch.from_numpy(np.fromfile(folder / f"{key}.f32", dtype=np.float32))
                for key in ("master", "exp_avg", "exp_avg_sq")}
        ours["param"] = torch.from_numpy(np.fromfile(folder / "param.bf16", dtype=np.int16)).view(torch.bfloat16)
    return param.detach(), optimizer.state[param], ours


class AdamW(unittest.TestCase):
    def check(self, **settings):
        torch_param, state, ours = run_both(**settings)
        steps, lr, grad_size = settings["steps"], settings["lr"], settings["grad_size"]
        # Each step adds a few roundings of the parameter, and of an update that is at most a few times lr. A moment's
        # rounding error is relative to the gradients that went into it, which are below 6 * grad_size.
        param_bound = steps * UNIT * (4 * torch_param.abs() + 64 * lr)
        moment_bound = steps * UNIT * 4 * 6 * grad_size
        self.assertTrue(((ours["master"] - torch_param).abs() <= param_bound).all())
        self.assertTrue(((ours["exp_avg"] - state["exp_avg"]).abs() <= moment_bound).all())
        torch.testing.assert_close(ours["exp_avg_sq"], state["exp_avg_sq"], rtol=steps * 6 * UNIT, atol=1e-38)
        return ours

    def test_equals_torch_with_common_settings(self):
        self.check(steps=10, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, grad_size=1.0)

    def test_epsilon_is_where_torch_has_it(self):
        self.check(steps=3, lr=1e-2, betas=(0.9, 0.999), eps=1e-3, weight_decay=0.0, grad_size=1e-4)

    def test_equals_torch_where_its_lerp_takes_the_other_form(self):
        self.check(steps=5, lr=1e-3, betas=(0.3, 0.5), eps=1e-6, weight_decay=0.1, grad_size=10.0)

    def test_the_bf16_weight_differs_from_torchs_cast_at_ties_only(self):
        ours = self.check(steps=2, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, grad_size=1.0)
        is_tie = (ours["master"].view(torch.int32) & 0xFFFF) == 0x8000
        self.assertTrue((ours["param"] == ours["master"].bfloat16())[~is_tie].all())


if __name__ == "__main__":
    unittest.main()
