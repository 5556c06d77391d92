"""One side of bench/step_vs_deepspeed.py and bench/ranks_vs_peers.py: steps of a Llama under DeepSpeed ZeRO-3, or its forward and
backward alone. How it is asked for them: torch_side.py.
"""

import time

from torch_side import batch_of, join_ranks, make_model, serve


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

        join_ranks(job)
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


if __name__ == "__main__":
    serve(DeepSpeedSteps)
