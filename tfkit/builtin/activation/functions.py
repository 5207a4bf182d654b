"""The activation functions. Each is elementwise: it maps (...) to (...) in the dtype of x.

relu           max(0, x)
relu_squared   max(0, x)^2                                              So et al. 2021, https://arxiv.org/abs/2109.08668
gelu           x Phi(x), Phi the normal distribution function           https://arxiv.org/abs/1606.08415
gelu_tanh      x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))            an approximation of gelu from the same paper
quick_gelu     x sigmoid(1.702 x)                                       another one from the same paper; CLIP uses it
silu           x sigmoid(x)                                             https://arxiv.org/abs/1702.03118
sigmoid, tanh, identity
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ...plugin import NoOptions


def relu(x: Tensor, options: NoOptions) -> Tensor:
    return functional.relu(x)


def relu_squared(x: Tensor, options: NoOptions) -> Tensor:
    return functional.relu(x).square()


def gelu(x: Tensor, options: NoOptions) -> Tensor:
    return functional.gelu(x)


def gelu_tanh(x: Tensor, options: NoOptions) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor, options: NoOptions) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def silu(x: Tensor, options: NoOptions) -> Tensor:
    return functional.silu(x)


def sigmoid(x: Tensor, options: NoOptions) -> Tensor:
    return torch.sigmoid(x)


def tanh(x: Tensor, options: NoOptions) -> Tensor:
    return torch.tanh(x)


def identity(x: Tensor, options: NoOptions) -> Tensor:
    return x
