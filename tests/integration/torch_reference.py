"""A run of transformers and torch.optim, in fp32 and in one process: what the program's runs are compared with."""

import torch
import transformers


def load(folder, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")


def loss_sum(model, samples):
    """Sum of the losses of all targets, and their number. One sample at a time: no padding to get wrong."""
    total, count = 0.0, 0
    for sample in samples:
        ids = torch.tensor([sample])
        logits = model(input_ids=ids).logits.float()[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
        count += len(sample) - 1
    return total, count


def optimizer_of(model, options):
    """Decay on matrices only, as transformers' Trainer groups them."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": options["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    beta1, rate = options.get("adam_beta1", 0.9), options["learning_rate"]
    if options.get("optim") == "momentum":
        return torch.optim.SGD(groups, lr=rate, momentum=beta1)
    return torch.optim.AdamW(
        groups, lr=rate, betas=(beta1, options.get("adam_beta2", 0.999)), eps=options["adam_epsilon"]
    )


def torch_run(model, samples, options):
    """[(loss, grad norm, learning rate)] of a run in which every batch is all samples."""
    optimizer = optimizer_of(model, options)
    schedule = transformers.get_scheduler(
        options["lr_scheduler_type"], optimizer, options.get("warmup_steps", 0), options["max_steps"]
    )
    history = []
    for _ in range(options["max_steps"]):
        total, count = loss_sum(model, samples)
        (total / count).backward()
        limit = options["max_grad_norm"] or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        history.append((total.item() / count, norm.item(), schedule.get_last_lr()[0]))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return history


def weights_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_moved_alike(actual, expected, before, tolerance):
    """Adam divides a gradient by its own size, so the rounding of a tiny one is a whole update: what counts is the
    error of a tensor as a whole against how far training moved it."""
    for name, tensor in expected.items():
        moved = (tensor - before[name]).norm()
        error = (actual[name] - tensor).norm()
        assert moved > 0 and error <= tolerance * moved, f"{name}: error {error:.2e}, moved {moved:.2e}"
