"""One side of bench/ranks_vs_peers.py: steps of a Llama under PyTorch's FSDP2. How it is asked for them: torch_side.py.

As near to Strata's stage 3 as FSDP2 comes: a group per decoder layer and one for the rest, parameters sharded in fp32 (they are
their own master), gathered and reduced in bf16, gathered again in backward, products in bf16, every block recomputed, the norm
clipped, fused AdamW over fp32 moments. Gradients stay in fp32, the type of the parameters.
"""

import time

from torch_side import batch_of, join_ranks, make_model, serve


class Fsdp2Steps:
    def __init__(self, job):
        import torch
        from torch.distributed import init_process_group
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        join_ranks(job)
        init_process_group("gloo")
        self.model = make_model(job, "float32")
        travel = torch.bfloat16
        settings = {
            "mesh": init_device_mesh("cpu", (job["ranks"],)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=travel, reduce_dtype=travel),
        }
        for layer in self.model.model.layers:
            fully_shard(layer, **settings)
        fully_shard(self.model, **settings)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
        self.batch = batch_of(job)

    def step(self):
        import torch

        start = time.perf_counter()
        loss = self.model(**self.batch).loss
        loss.backward()
        updating = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss = float(loss)
        end = time.perf_counter()
        return {"seconds": end - start, "optimizer": end - updating, "loss": loss}


if __name__ == "__main__":
    serve(Fsdp2Steps)
