"""What sdpa prepares without gradients on a CPU changes no bit of what it gives."""

from __future__ import annotations

import pytest
import torch

from tfkit.builtin.attention.entries import SdpaOptions
from tfkit.builtin.attention.sdpa import attend, prepare
from tfkit.plugin import AttentionInputs, DenseBias, LinearBias, Mask, shapes_of

B, H, G = 3, 4, 2
RAGGED = torch.tensor([5, 19, 1])
MASKS = {
    "nothing": lambda Q, K: Mask(),
    "all visible": lambda Q, K: Mask(key_visible=torch.ones(B, K, dtype=torch.bool)),
    "ragged": lambda Q, K: Mask(key_visible=torch.arange(K) < RAGGED[:, None]),
    "lengths": lambda Q, K: Mask(key_lengths=RAGGED),
    "a row sees nothing": lambda Q, K: Mask(key_lengths=RAGGED - 1),
    "fully masked queries": lambda Q, K: Mask(causal=True, offset=K - Q, query_lengths=torch.tensor([0, 1, Q])),
    "causal": lambda Q, K: Mask(causal=True, offset=K - Q),
    "any": lambda Q, K: Mask(visible=torch.rand(B, 1, Q, K, generator=torch.Generator().manual_seed(2)) < 0.4),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", ["none", "dense", "linear"])
@pytest.mark.parametrize("name", MASKS)
def test_not_a_bit(name: str, bias: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    for Q, K in ((1, 19), (5, 19), (19, 19), (1, 32)):
        query, key, value = (
            torch.randn(B, heads, length, 8, generator=generator).to(dtype) for heads, length in ((H, Q), (G, K), (G, K))
        )
        mask = MASKS[name](Q, K)
        if bias == "linear" and mask.offset is None:
            continue
        added = {"none": None, "dense": DenseBias(torch.ones(H, 1, K, dtype=dtype)), "linear": LinearBias(torch.ones(H))}[bias]
        plain = AttentionInputs(query, key, value, mask, 0.3, added)
        with torch.no_grad():
            made = prepare(mask, added, shapes_of(plain), SdpaOptions())
            settled = AttentionInputs(query, key, value, mask, 0.3, added, prepared=made)
            assert torch.equal(attend(settled, SdpaOptions()).output, attend(plain, SdpaOptions()).output)
