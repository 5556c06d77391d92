"""What the workers of other engines share: the Llama that they train, its batch, and how they are asked for steps.

A worker reads one JSON object, the job, from the first line of stdin; then it takes one settled step for each further line: the
second of two after a pause. It prints a JSON line when it is ready and one for each step. See job_of() in step_sides.py.
"""

import json
import os
import sys
import time


def make_model(job, dtype="bfloat16"):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = job["shape"]
    config = LlamaConfig(
        hidden_size=shape["hidden"],
        intermediate_size=shape["inner"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        vocab_size=shape["vocab"],
        tie_word_embeddings=True,
        max_position_embeddings=job["tokens"],
        use_cache=False,
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM._from_config(config, dtype=getattr(torch, dtype))
    model.gradient_checkpointing_enable()  # as ours: every block is recomputed
    if job["compute"] == "fp32":
        upcast_products(model)
    return model.train()


def upcast_products(model):
    """As Strata's fp32 compute does: 16-bit weights, each upcast where it is used; activations in fp32."""
    import torch

    def linear(module):
        return lambda x: torch.nn.functional.linear(
            x.float(), module.weight.float(), None if module.bias is None else module.bias.float()
        )

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.forward = linear(module)
        elif isinstance(module, torch.nn.Embedding):
            module.forward = lambda ids, embed=module.forward: embed(ids).float()


def batch_of(job):
    """The batch of `strata bench step`."""
    import torch

    vocab = job["shape"]["vocab"]
    tokens = torch.tensor([[(t * 7919 + 13) % vocab for t in range(job["tokens"])]])
    labels = torch.tensor([[(t * 104729 + 1) % vocab for t in range(job["tokens"])]])
    return {"input_ids": tokens, "shift_labels": labels, "labels": labels}  # not shifted once more


def join_ranks(job):
    """The variables by which torch.distributed and DeepSpeed find the other ranks."""
    rank = str(job["rank"])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(job["ranks"]), "LOCAL_WORLD_SIZE": str(job["ranks"])}


class ComputeSteps:
    """Forward and backward in memory: what a step takes when nothing is offloaded and nothing is updated."""

    def __init__(self, job):
        self.model = make_model(job)
        self.batch = batch_of(job)

    def step(self):
        start = time.perf_counter()
        loss = self.model(**self.batch).loss
        loss.backward()
        end = time.perf_counter()
        self.model.zero_grad(set_to_none=False)  # the gradients' memory stays
        return {"seconds": end - start, "loss": float(loss)}


def serve(make_side):
    """Takes steps of make_side(job), or of computing alone where the job has no home of states."""
    job = json.loads(sys.stdin.readline())
    os.sched_setaffinity(0, job["cpus"])  # before any thread is made
    stdout = os.dup(1)  # DeepSpeed and the compiler talk on stdout; it is kept for the results
    os.dup2(2, 1)
    with os.fdopen(stdout, "w", buffering=1) as out:
        import torch

        torch.set_num_threads(len(job["cpus"]))
        side = ComputeSteps(job) if job["home"] == "none" else make_side(job)
        print(json.dumps({"ready": True}), file=out)
        for _ in sys.stdin:
            side.step()
            print(json.dumps(side.step()), file=out)
