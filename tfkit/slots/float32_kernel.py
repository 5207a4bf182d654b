"""Float32 kernel: products of float32 activations and packed weights on a CPU, while decoding."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Entry


@dataclass(frozen=True, kw_only=True)
class Float32Kernel(Entry):
    """One way to compute y = x W^T + b with a packed weight. `summary` names the library and the instructions.

    Searches use the fastest kernel that the processor has instructions for. `tfkit_conformance.check_product` has its laws.

    Args:
        needs: instruction sets, as `torch.cpu.get_capabilities` names them.
        pack: `"module:function"`, called as `pack(weight)` with a weight float32 (out, in); the result is in the layout of the
            kernel, and takes about the memory of the weight.
        multiply: `"module:function"`, called as `multiply(x, packed, bias)` with x float32 (N, in) and a bias float32 (out,) or
            None; returns y float32 (N, out). A row has the same bits alone and in a batch.
        relative_time: the time of a product relative to that of the core with packed weights, where that is fastest.
    """

    needs: tuple[str, ...]
    pack: str
    multiply: str
    relative_time: float
