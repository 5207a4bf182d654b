"""Logits of labelled tokens alone. Masked training labels 15 % of the tokens; logits of the others would be most of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ..data import NO_LABEL
from ..nn.tokens import TokenLogits

FEW = 0.5
"""Largest share of labelled tokens for which the rows are gathered: gathering costs a copy."""


@contextmanager
def labelled_rows(nodes: nn.ModuleDict, labels: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Let token logits of an output be computed for its labelled tokens only, if these are few.

    Args:
        nodes: the nodes of the model.
        labels: the labels (B, L) or (B,) of every output.

    Yields:
        The labels to compare the outputs with: those of N labelled tokens, (N,), where the logits are (N, vocab_size).
    """
    found, handles = dict(labels), []
    for name, own in labels.items():
        node, rows = nodes[name], own != NO_LABEL
        if isinstance(node, TokenLogits) and 0 < int(rows.sum()) < FEW * rows.numel():
            found[name] = own[rows]
            handles.append(node.register_forward_pre_hook(_gather(rows), with_kwargs=True))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _gather(rows: Tensor) -> Any:
    """A hook that gives the node the rows (N, M) of its input (B, L, M) which are labelled."""

    def hook(node: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        input = keywords["input"]
        return arguments, {**keywords, "input": replace(input, tensor=input.tensor[rows])}

    return hook
