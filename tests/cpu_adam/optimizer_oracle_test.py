"""CpuOptimizer against torch.optim itself, and Lion against its definition, through a program that works on raw files."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import torch

ORACLE = sys.argv.pop() if len(sys.argv) > 1 else "optimizer_oracle"
NUMEL = 40_003
UNIT = 2.0**-24  # relative error of one fp32 rounding


def inputs(steps, grad_size):
    generator = torch.Generator().manual_seed(7)
    master = torch.randn(NUMEL, generator=generator) * 0.05
    grads = (torch.randn(steps, NUMEL, generator=generator) * grad_size).bfloat16()
    return master, grads


def run_ours(kind, master, grads, lr, betas=(0.0, 0.0), eps=0.0, weight_decay=0.0):
    """Returns master, moments and bf16 parameter after a step per gradient, as a dict of tensors."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        master.numpy().tofile(folder / "master.f32")
        grads.view(torch.int16).numpy().tofile(folder / "grads.bf16")
        numbers = [len(grads), lr, *betas, eps, weight_decay]
        subprocess.run([ORACLE, name, kind, *[repr(number) for number in numbers]], check=True)
        ours = {path.stem: torch.from_numpy(np.fromfile(path, dtype=np.float32)) for path in folder.glob("*.f32")}
        ours["param"] = torch.from_numpy(np.fromfile(folder / "param.bf16", dtype=np.int16)).view(torch.bfloat16)
    return ours


def run_torch(make, master, grads):
    """Returns the parameter and its state after a step per gradient."""
    param = torch.nn.Parameter(master.clone())
    optimizer = make([param])
    for grad in grads:
        param.grad = grad.float()
        optimizer.step()
    return param.detach(), optimizer.state[param]


class AdamAndAdamW(unittest.TestCase):
    def check(self, steps, lr, betas, eps, weight_decay, grad_size):
        master, grads = inputs(steps, grad_size)
        for kind, torch_class in (("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam)):
            with self.subTest(kind):
                ours = run_ours(kind, master, grads, lr, betas, eps, weight_decay)
                param, state = run_torch(lambda params: torch_class(  # noqa: B023
                    params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, foreach=False), master, grads)
                # Each step adds a few roundings of the parameter, and of an update that is at most a few times lr. A
                # moment's rounding error is relative to the gradients that went into it, which are below 6 * grad_size
                # (Adam adds weight_decay * parameter, below 0.3 * weight_decay).
                size = 6 * grad_size + 0.3 * weight_decay
                param_bound = steps * UNIT * (4 * param.abs() + 64 * lr)
                moment_bound = steps * UNIT * 4 * size
                self.assertTrue(((ours["exp_avg"] - state["exp_avg"]).abs() <= moment_bound).all())
                if kind == "adamw":
                    self.assertTrue(((ours["master"] - param).abs() <= param_bound).all())
                    torch.testing.assert_close(ours["exp_avg_sq"], state["exp_avg_sq"], rtol=steps * 6 * UNIT, atol=1e-38)
                else:
                    # Where the gradient and the decay nearly cancel, the sum's rounding error is large beside the sum,
                    # and Adam divides by its size: compared where they do not.
                    clear = state["exp_avg_sq"].sqrt() > 0.001 * size
                    self.assertGreater(clear.float().mean().item(), 0.5)
                    self.assertTrue(((ours["master"] - param).abs() <= 100 * param_bound)[clear].all())
                    torch.testing.assert_close(ours["exp_avg_sq"][clear], state["exp_avg_sq"][clear],
                                               rtol=steps * 1000 * UNIT, atol=1e-38)
        return ours

    def test_equals_torch_with_common_settings(self):
        self.check(steps=10, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, grad_size=1.0)

    def test_epsilon_is_where_torch_has_it(self):  # NUM-16
        self.check(steps=3, lr=1e-2, betas=(0.9, 0.999), eps=1e-3, weight_decay=0.0, grad_size=1e-4)

    def test_equals_torch_where_its_lerp_takes_the_other_form(self):
        self.check(steps=5, lr=1e-3, betas=(0.3, 0.5), eps=1e-6, weight_decay=0.1, grad_size=10.0)

    def test_parameter_is_the_master_rounded_to_nearest(self):
        master, grads = inputs(3, 1.0)
        ours = run_ours("adamw", master, grads, 1e-3, (0.9, 0.999), 1e-8, 0.01)
        # torch rounds ties to even; a master of the test lies on a tie with a chance of 2^-16 each.
        different = ours["param"] != ours["master"].bfloat16()
        self.assertTrue((ours["master"].view(torch.int32)[different] & 0xFFFF == 0x8000).all())


class Sgd(unittest.TestCase):
    def test_equals_torch(self):
        steps, lr, momentum, weight_decay = 12, 0.1, 0.9, 0.01
        master, grads = inputs(steps, 1.0)
        for kind, settings in (("sgd", {}), ("momentum", {"momentum": momentum}),
                               ("nesterov", {"momentum": momentum, "nesterov": True})):
            with self.subTest(kind):
                ours = run_ours(kind, master, grads, lr, (momentum, 0.0), weight_decay=weight_decay)
                param, state = run_torch(lambda params: torch.optim.SGD(  # noqa: B023
                    params, lr=lr, weight_decay=weight_decay, foreach=False, **settings), master, grads)
                # A buffer is at most 6 / (1 - momentum) here, and takes three roundings a step; the parameter moves by
                # lr times it.
                bound = steps * 4 * UNIT * 60
                if kind != "sgd":
                    self.assertTrue(((ours["momentum_buffer"] - state["momentum_buffer"]).abs() <= bound).all())
                self.assertTrue(((ours["master"] - param).abs() <= steps * (UNIT * 4 * param.abs() + lr * bound)).all())


class Lion(unittest.TestCase):
    def test_equals_algorithm_2_in_double(self):
        steps, lr, (beta1, beta2), weight_decay = 12, 1e-3, (0.9, 0.99), 0.1
        master, grads = inputs(steps, 1.0)
        ours = run_ours("lion", master, grads, lr, (beta1, beta2), weight_decay=weight_decay)

        theta, momentum = master.double(), torch.zeros(NUMEL, dtype=torch.float64)
        doubtful = torch.zeros(NUMEL, dtype=torch.bool)
        for grad in grads.double():
            update = beta1 * momentum + (1 - beta1) * grad
            doubtful |= update.abs() < 1e-6  # its sign is a matter of rounding
            theta = theta - lr * (update.sign() + weight_decay * theta)
            momentum = beta2 * momentum + (1 - beta2) * grad

        self.assertLess(doubtful.float().mean().item(), 1e-3)
        self.assertTrue(((ours["exp_avg"] - momentum).abs() <= steps * 4 * UNIT * 6).all())
        # Four roundings a step of a parameter that was at most steps * lr larger than it is now.
        close = (ours["master"] - theta).abs() <= steps * UNIT * 4 * (theta.abs() + steps * lr)
        self.assertTrue((close | doubtful).all())


if __name__ == "__main__":
    unittest.main()
