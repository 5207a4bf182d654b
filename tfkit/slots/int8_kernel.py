"""Int8 kernel: products of int8 weights and activations on a CPU, for models that are loaded with `precision="int8"`."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Entry


@dataclass(frozen=True, kw_only=True)
class Int8Kernel(Entry):
    """One way to compute y = x W^T + b with a scale for each output channel of W and each row of x. `summary` names the library
    and the instructions.

    A model uses the fastest kernel that the processor has instructions for. `tfkit_conformance.check_product` has its laws.

    Args:
        needs: instruction sets, as `torch.cpu.get_capabilities` names them.
        levels: the largest integer of an activation, at most 127.
        pack: `"module:function"`, called as `pack(integers, scales)` with integers from -127 to 127, int8 (out, in), and the
            scales of the channels, float32 (out,); the result is in the layout of the kernel.
        multiply: `"module:function"`, called as `multiply(x, packed, bias)` with x float32 (N, in) and a bias float32 (out,) or
            None; returns y float32 (N, out). A row has the same bits alone and in a batch.
        relative_time: the time of a product relative to the built-in kernel `fbgemm_vnni`.
    """

    needs: tuple[str, ...]
    levels: int
    pack: str
    multiply: str
    relative_time: float
