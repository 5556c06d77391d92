"""One side of bench/step_vs_deepspeed.py: steps of a Llama under DeepSpeed ZeRO-3, or its forward and backward alone.

Reads one JSON object, the job, from the first line of stdin; then takes one settled step for each further line: the second of
two after a pause. Prints a JSON line when ready and one for each step. See jobs in step_vs_deepspeed.py.
"""

import json
import os
import sys
import time


def make_model(job):
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
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
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


def deepspeed_config(job):
    buffers = job["buffers"]
    zero = {
        "stage": 3,
        "sub_group_size": buffers["sub_group_size"],
        "reduce_bucket_size": buffers["reduce_bucket_size"],
        "stage3_prefetch_bucket_size": buffers["prefetch_bucket_size"],
        "stage3_max_live_parameters": buffers["max_live_parameters"],
        "stage3_max_reuse_distance": buffers["max_live_parameters"],
        "offload_optimizer": {"device": job["home"]},
        "offload_param": {"device": job["home"]},
    }
    if job["compute"] == "fp32":
        zero["memory_efficient_linear"] = False  # it replaces the product that was upcast
    if job["home"] == "nvme":
        zero["offload_optimizer"] |= {
            "nvme_path": job["dir"],
            "buffer_count": buffers["buffer_count"],
            "pipeline_read": True,
            "pipeline_write": True,
        }
        zero["offload_param"] |= {
            "nvme_path": job["dir"],
            "buffer_count": buffers["param_buffer_count"],
            "buffer_size": buffers["param_buffer_size"],
            "max_in_cpu": 0,
        }
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
        "zero_optimization": zero,
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "single_submit": False, "overlap_events": True},
        "steps_per_print": 1 << 30,
    }


class DeepSpeedSteps:
    def __init__(self, job):
        import deepspeed

        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        deepspeed.init_distributed(dist_backend="gloo")
        model = make_model(job)
        self.engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=deepspeed_config(job)
        )
        self.batch = batch_of(job)

    def step(self):
        start = time.perf_counter()
        loss = self.engine(**self.batch).loss
        self.engine.backward(loss)
        updating = time.perf_counter()
        self.engine.step()
        loss = float(loss)
        end = time.perf_counter()
        return {"seconds": end - start, "optimizer": end - updating, "loss": loss}


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


def main():
    job = json.loads(sys.stdin.readline())
    stdout = os.dup(1)  # DeepSpeed and the compiler talk on stdout; it is kept for the results
    os.dup2(2, 1)
    with os.fdopen(stdout, "w", buffering=1) as out:
        import torch

        torch.set_num_threads(job["threads"])
        side = ComputeSteps(job) if job["home"] == "none" else DeepSpeedSteps(job)
        print(json.dumps({"ready": True}), file=out)
        for _ in sys.stdin:
            side.step()
            print(json.dumps(side.step()), file=out)


if __name__ == "__main__":
    main()
