"""Padding from the ids of a sequence, or of a sequence that grows step by step."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...errors import Diagnostic, InputError
from ...slots.node import InputRule
from .decoding_state import DecodingState
from .input_checks import check_tensor
from .node_output import Padding


def padding_from_ids(ids: Tensor, pad_id: int | None, start_id: int | None) -> Padding:
    """The padding of ids (B, L): the tokens `pad_id`, except the start token.

    If both have the same id, the start token is the last pad before the first other token, or the first token of a row that
    has no other.
    """
    if pad_id is None:
        return Padding()
    visible = ids != pad_id  # (B, L)
    if start_id == pad_id:
        length = ids.shape[1]
        next_visible = torch.cat([visible[:, 1:], visible.new_zeros(ids.shape[0], 1)], 1)
        before_first = visible.cumsum(1) == 0
        start = before_first & next_visible
        only_pads = ~visible.any(1, keepdim=True) & (torch.arange(length, device=ids.device) == 0)
        visible = visible | start | only_pads
    return Padding(visible=visible)


def step_padding(state: DecodingState, ids: Tensor, visible: Tensor | Literal[True] | None, rule: InputRule) -> Padding:
    """The padding of the sequence so far and the new ids (B, n), from `visible` as in `Model.step`.

    Raises:
        InputError: `visible` is not bool or has another shape than the ids.
    """
    if visible is not None and visible is not True:
        check_tensor("`visible`", visible)
    if isinstance(visible, Tensor) and (visible.dtype is not torch.bool or visible.shape != ids.shape):
        message = f"`visible` is {visible.dtype} {tuple(visible.shape)}, the ids are {tuple(ids.shape)}"
        raise InputError(Diagnostic("TFK070", message, "it is bool, True for real tokens, of the ids' shape"))
    if visible is None and rule.pad_id is not None:
        whole = ids if state.ids is None else torch.cat([state.ids, ids], 1)  # (B, length + n)
        found = padding_from_ids(whole, rule.pad_id, rule.start_id).as_visible(whole.shape[1])
        visible = None if found is None else found[:, state.length :]
    if state.visible is None and (not isinstance(visible, Tensor) or bool(visible.all())):
        return Padding()
    everything = torch.ones(state.batch, state.length + ids.shape[1], dtype=torch.bool, device=ids.device)
    before = everything[:, : state.length] if state.visible is None else state.visible
    now = visible if isinstance(visible, Tensor) else everything[:, state.length :]
    return Padding(visible=torch.cat([before, now], 1))
