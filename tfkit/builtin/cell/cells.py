"""The built-in recurrent cells: their weights, a product for each input and one or two of the state, and one step of each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...plugin import CellSite
from ...plugin.model_parts import MethodModule
from .entries import CellOptions, GruOptions

State = tuple[Tensor, ...]


class InputWeights(nn.ParameterList):
    """The weights of the inputs. `weights(i)` is `weights[i]` as a call, which torch's list of parameters refuses."""

    __call__ = nn.Module.__call__

    def forward(self, index: int) -> Tensor:
        weight: Tensor = self[index]
        return weight


class CellWeights(MethodModule):
    """W_i (E, inputs[i]), U (E, N) and their biases (E,), where E = gates * N.

    Every input has a weight of its own. A slice of one weight would fill its whole gradient with zeros at every step.
    """

    def __init__(self, gates: int, site: CellSite, bias: bool) -> None:
        super().__init__()
        self.d_state = site.d_state
        rows = gates * site.d_state
        self.weights_ih = InputWeights([torch.empty(rows, width) for width in site.inputs])
        self.bias_ih = nn.Parameter(torch.empty(rows)) if bias else None

    def project(self, x: Tensor, index: int) -> Tensor:
        """W_i x, with the bias for the first input: (..., inputs[i]) -> (..., E)."""
        return functional.linear(x, self.weights_ih(index), self.bias_ih if index == 0 else None)


class TorchCellWeights(CellWeights):
    """The weights of torch's cells: one product of the state for all gates, with a bias of its own."""

    def __init__(self, gates: int, site: CellSite, bias: bool) -> None:
        super().__init__(gates, site, bias)
        rows = gates * site.d_state
        self.weight_hh = nn.Parameter(torch.empty(rows, site.d_state))
        self.bias_hh = nn.Parameter(torch.empty(rows)) if bias else None

    def of_state(self, h: Tensor) -> Tensor:
        """U h + b: (B, N) -> (B, E)."""
        return functional.linear(h, self.weight_hh, self.bias_hh)

    def flat_weights(self) -> list[Tensor]:
        """W, U and the biases in the order of torch's recurrent functions."""
        weights = [self.weights_ih(index) for index in range(len(self.weights_ih))]
        inputs = weights[0] if len(weights) == 1 else torch.cat(weights, 1)
        return [inputs, self.weight_hh, *(bias for bias in (self.bias_ih, self.bias_hh) if bias is not None)]


class RnnTanh(TorchCellWeights):
    """The simple recurrent network, Elman 1990 (https://doi.org/10.1207/s15516709cog1402_1):

    h' = tanh(W x + b + U h + c)

    One step; the state is (h,).
    """

    torch_function = staticmethod(torch.rnn_tanh)

    def __init__(self, site: CellSite, bias: bool) -> None:
        super().__init__(1, site, bias)

    def step(self, projected: Tensor, state: State) -> State:
        """(B, N), (h (B, N),) -> (h',)."""
        return (torch.tanh(projected + self.of_state(state[0])),)


def rnn_tanh(options: CellOptions, site: CellSite) -> nn.Module:
    """The cell as a module."""
    return RnnTanh(site, options.bias)


class RnnRelu(RnnTanh):
    """The same with max(0, .) in the place of tanh, Le et al. 2015 (https://arxiv.org/abs/1504.00941)."""

    torch_function = staticmethod(torch.rnn_relu)

    def step(self, projected: Tensor, state: State) -> State:
        """(B, N), (h (B, N),) -> (h',)."""
        return (torch.relu(projected + self.of_state(state[0])),)


def rnn_relu(options: CellOptions, site: CellSite) -> nn.Module:
    """The cell as a module."""
    return RnnRelu(site, options.bias)


class GruResetBefore(CellWeights):
    """One step of the papers' gated recurrent unit; the state is (h,)."""

    def __init__(self, site: CellSite, bias: bool) -> None:
        super().__init__(3, site, bias)
        N = site.d_state
        self.weight_hh = nn.Parameter(torch.empty(2 * N, N))
        self.weight_hn = nn.Parameter(torch.empty(N, N))

    def step(self, projected: Tensor, state: State) -> State:
        """(B, 3 N), (h (B, N),) -> (h',)."""
        (h,), N = state, self.d_state
        of_gates, of_new = torch.split(projected, [2 * N, N], 1)
        r, z = torch.sigmoid(of_gates + functional.linear(h, self.weight_hh)).chunk(2, 1)
        n = torch.tanh(of_new + functional.linear(r * h, self.weight_hn))
        return (torch.lerp(h, n.to(h.dtype), z.to(h.dtype)),)  # h + z * (n - h)


class GruResetAfter(TorchCellWeights):
    """One step of torch's gated recurrent unit; the state is (h,)."""

    torch_function = staticmethod(torch.gru)

    def __init__(self, site: CellSite, bias: bool) -> None:
        super().__init__(3, site, bias)

    def step(self, projected: Tensor, state: State) -> State:
        """(B, 3 N), (h (B, N),) -> (h',)."""
        (h,), N = state, self.d_state
        of_gates, of_new = torch.split(projected, [2 * N, N], 1)
        state_gates, state_new = torch.split(self.of_state(h), [2 * N, N], 1)
        r, z = torch.sigmoid(of_gates + state_gates).chunk(2, 1)
        n = torch.tanh(of_new + r * state_new)
        return (torch.lerp(n.to(h.dtype), h, z.to(h.dtype)),)  # n + z * (h - n)


def gru(options: GruOptions, site: CellSite) -> nn.Module:
    """The gated recurrent unit, Cho et al. 2014, section 2.3 (https://arxiv.org/abs/1406.1078):

        r = sigmoid(W_r x + U_r h)
        z = sigmoid(W_z x + U_z h)
        n = tanh(W_n x + U_n (r * h))              `reset: before`, the papers (Cho; Bahdanau et al. 2015, appendix A.1.1)
        n = tanh(W_n x + r * (U_n h + c_n))        `reset: after`, torch.nn.GRU and cuDNN
        h' = (1 - z) * h + z * n                   `before`
        h' = z * h + (1 - z) * n                   `after`: torch's z is one minus that of the papers

    With the same weights the two forms differ, because the reset gate acts on different sides of the product.
    """
    return (GruResetBefore if options.reset == "before" else GruResetAfter)(site, options.bias)


class GruCho(CellWeights):
    """The gated recurrent unit of a decoder, Cho et al. 2014, appendix A.1.2 (https://arxiv.org/abs/1406.1078): the reset gate
    scales what the state and the context c give the new state, and not what the token x gives it.

        r = sigmoid(W_r x + C_r c + U_r h)
        z = sigmoid(W_z x + C_z c + U_z h)
        n = tanh(W_n x + r * (U_n h + C_n c))
        h' = z * h + (1 - z) * n

    Every input but the first is such a context. So C_n c has features of its own in a projection. One step; the state is (h,).
    """

    def __init__(self, site: CellSite, bias: bool) -> None:
        super().__init__(3, site, bias)
        self.weight_hh = nn.Parameter(torch.empty(3 * site.d_state, site.d_state))

    def project(self, x: Tensor, index: int) -> Tensor:
        """(..., inputs[i]) -> (..., 4 N): for r, z, W_n x and C_n c."""
        of_gates, of_new = torch.split(super().project(x, index), [2 * self.d_state, self.d_state], -1)
        zeros = torch.zeros_like(of_new)
        return torch.cat([of_gates, of_new, zeros] if index == 0 else [of_gates, zeros, of_new], -1)

    def step(self, projected: Tensor, state: State) -> State:
        """(B, 4 N), (h (B, N),) -> (h',)."""
        (h,), N = state, self.d_state
        of_gates, of_token, of_context = torch.split(projected, [2 * N, N, N], 1)
        state_gates, of_state = torch.split(functional.linear(h, self.weight_hh), [2 * N, N], 1)
        r, z = torch.sigmoid(of_gates + state_gates).chunk(2, 1)
        n = torch.tanh(of_token + r * (of_state + of_context))
        return (torch.lerp(n.to(h.dtype), h, z.to(h.dtype)),)  # n + z * (h - n)


def gru_cho(options: CellOptions, site: CellSite) -> nn.Module:
    """The cell as a module."""
    return GruCho(site, options.bias)


class Lstm(TorchCellWeights):
    """Long short-term memory with a forget gate, Gers et al. 2000 (https://doi.org/10.1162/089976600300015015):

    i = sigmoid(W_i x + U_i h)    f = sigmoid(W_f x + U_f h)    o = sigmoid(W_o x + U_o h)
    c' = f * c + i * tanh(W_c x + U_c h)
    h' = o * tanh(c')

    One step; the state is (h, c).
    """

    torch_function = staticmethod(torch.lstm)

    def __init__(self, site: CellSite, bias: bool) -> None:
        super().__init__(4, site, bias)

    def step(self, projected: Tensor, state: State) -> State:
        """(B, 4 N), (h (B, N), c (B, N)) -> (h', c')."""
        h, c = state
        i, f, new, o = (projected + self.of_state(h)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
        return torch.sigmoid(o) * torch.tanh(c), c


def lstm(options: CellOptions, site: CellSite) -> nn.Module:
    """The cell as a module."""
    return Lstm(site, options.bias)
