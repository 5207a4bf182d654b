"""A model with one text, and its peer of Hugging Face transformers: outputs, gradients and greedy tokens are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import tfkit

from .comparison import all_in_float64, compare, copy_weights, shake
from .generation import TOKENS, filtered, generated, talkative
from .name_maps import NameMap

LENGTHS = (31, 17, 1, 6)
VOCABULARY = 61


@dataclass(frozen=True)
class Family:
    """A shipped spec, and the peer that it describes.

    Args:
        spec: the stem of the spec's file.
        make: makes the small peer.
        overrides: what makes the spec as small.
        names: the peer's names of our parameters.
        output: our name of the peer's `logits`.
    """

    spec: str
    make: Callable[[], Any]
    overrides: tuple[str, ...]
    names: NameMap
    output: str = "logits"

    def peer(self, seed: int = 0) -> Any:
        with all_in_float64():
            peer = self.make().eval()
            shake(peer, seed)
        return peer

    def check(self, shrunk: Any, padded: Any, padding_by: str = "masks", wrong: tuple[str, ...] = ()) -> None:
        """Outputs and gradients are equal up to rounding; `wrong` are overrides that make the spec another model's."""
        ids, real = padded(LENGTHS, VOCABULARY)
        theirs, ours = self.peer(), shrunk(self.spec, *self.overrides, wrong=wrong)
        padding = {padding_by: {"tokens": real if padding_by == "masks" else real.sum(1)}}
        compare(
            ours,
            theirs,
            self.names,
            lambda: {self.output: ours(tokens=ids, **padding)[self.output]},
            lambda: {self.output: theirs(ids, attention_mask=real).logits},
            real,
        )

    def check_call(self, shrunk: Any, ids: Tensor, theirs_take: dict[str, Any], ours_take: dict[str, Any]) -> None:
        """Outputs and gradients of calls without padding are equal up to rounding."""
        theirs, ours = self.peer(), shrunk(self.spec, *self.overrides)
        compare(
            ours,
            theirs,
            self.names,
            lambda: {self.output: ours(tokens=ids, **ours_take)[self.output]},
            lambda: {self.output: theirs(ids, **theirs_take).logits},
            torch.ones_like(ids, dtype=torch.bool),
        )

    def check_greedy(self, shrunk: Any, prompt: Tensor, **given: Tensor) -> tfkit.Generated:
        """Both decode the same tokens after a prompt, far enough to leave windows behind. `given` is more for the peer."""
        length = prompt.shape[1]
        theirs, end = talkative(self.peer, prompt, length, **given)
        ours = shrunk(self.spec, *self.overrides, f"tokens.end_id={end}")
        copy_weights(ours, theirs, self.names)
        made = tfkit.greedy(ours, prompt=prompt, max_new_tokens=TOKENS)
        assert made.ids.tolist() == generated(theirs, prompt, end, made.fill_id, **given)[:, length:].tolist()
        return made

    def check_filters(self, shrunk: Any, prompt: Tensor) -> None:
        """Both decode the same tokens with filters that count the tokens of the prompt, too."""
        theirs, end = talkative(self.peer, prompt, prompt.shape[1])
        ours = shrunk(self.spec, *self.overrides, f"tokens.end_id={end}")
        copy_weights(ours, theirs, self.names)
        plain = tfkit.greedy(ours, prompt=prompt, max_new_tokens=TOKENS)
        for label in ("bad words", "no bigram twice", "repetition", "several"):
            settings, filters = filtered(plain.ids[int(plain.lengths.argmax())].tolist(), 17)[label]
            rows = generated(theirs, prompt, end, plain.fill_id, **settings)[:, prompt.shape[1] :].tolist()
            assert tfkit.greedy(ours, prompt=prompt, max_new_tokens=TOKENS, filters=filters).ids.tolist() == rows, label
