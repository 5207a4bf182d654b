"""torch: two threads of a gloo group assign one std::string. The process aborts after some hundred thousand operations."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group, output, inputs = dist.group.WORLD, [torch.zeros(1)], [torch.zeros(1)]
for _ in range(8000):
    pending = [group.allgather_into_tensor_coalesced(output, inputs) for _ in range(64)]
    for work in pending:
        work.wait()
print("no crash with torch", torch.__version__)
