"""The example nccl_id as a Python rank: what init_process_group does to meet, and to hand out an id of NCCL."""

import os

import torch
import torch.distributed as dist

store, rank, size = next(dist.rendezvous("env://"))
if rank == 0:
    store.set("nccl/id", bytes(torch.cuda.nccl.unique_id()))
id = store.get("nccl/id")
sum = 0
for byte in id:
    sum = (sum * 31 + byte) % 2**32
print(f"rank {rank} of {size}: an id of {len(id)} bytes, {sum:08x}", flush=True)
if store.add("nccl/through", 1) == size:
    store.set("nccl/all-through", "")
if rank == 0:
    store.wait(["nccl/all-through"])
# Nothing of torch's has to be torn down.
os._exit(0)
