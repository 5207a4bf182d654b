"""The state of incremental decoding: keys and values that were already computed, ids and padding so far.

A cache has buffers (B, G, room, D) and returns views of their used part. On a CPU, attention over 64 used positions takes a
tenth of the time of attention over a buffer of 512 with a mask. On a CPU a buffer is also only slightly longer than its used
part: gaps between the rows cost more in every step than the copies when it grows.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...attention.types import Prepared
from ...cpu.packed_weight import SearchProducts
from ...errors import Diagnostic, InputError
from .beam_tree import BeamTree, SentenceRows
from .head_columns import HeadColumns, ListedColumns
from .node_output import NodeOutput, Padding

STEP = 8
"""A buffer on a CPU grows by this many positions, or by an eighth of its length if that is more."""


class KeyValueCache:
    """Keys and values of one attention site, (B, G, length, D) and (B, G, length, V), growing along the length."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def check_dtype(self, site: str, key: Tensor) -> None:
        """Raises InputError if new keys (B, G, n, D) have another dtype than those in the cache."""
        if self.key is not None and self.key.dtype != key.dtype:
            before, now = (str(tensor.dtype).removeprefix("torch.") for tensor in (self.key, key))
            message = f"the keys of `{site}` are {before} in earlier steps and {now} in this one"
            fix = (
                "all steps of a decoding state run inside the same torch.autocast, or all outside of it, and no one casts the "
                "model between them"
            )
            raise InputError(Diagnostic("TFK071", message, fix))

    def write(
        self, start: int, key: Float[Tensor, "B G n D"], value: Float[Tensor, "B G n V"]
    ) -> tuple[Float[Tensor, "B G K D"], Float[Tensor, "B G K V"]]:
        """Write n keys and values from position `start` on. They replace those of a step that failed after writing.

        Returns:
            Views of all keys (B, G, K, D) and values (B, G, K, V) so far.
        """
        self.length = start + key.shape[2]
        self.key = self._grown(self.key, key)
        self.value = self._grown(self.value, value)
        self.key[:, :, start : self.length] = key
        self.value[:, :, start : self.length] = value
        return self.key[:, :, : self.length], self.value[:, :, : self.length]

    def _grown(self, held: Tensor | None, new: Tensor) -> Tensor:
        if held is not None and held.shape[2] >= self.length:
            return held
        B, G, _, D = new.shape
        grown = new.new_empty(B, G, self._room(new.is_cpu), D)
        if held is not None:
            grown[:, :, : held.shape[2]] = held
        return grown

    def _room(self, on_cpu: bool) -> int:
        """The size of a new buffer for `length` positions."""
        if not on_cpu:
            return self.capacity if self.length <= self.capacity else 2 * self.length
        room = self.length + max(STEP, self.length // 8)
        return min(room, self.capacity) if self.length <= self.capacity else room

    def reorder(self, rows: Tensor) -> None:
        """Keep the batch rows `rows` in this order; a row may occur several times or not at all."""
        if self.key is not None and self.value is not None:
            self.key, self.value = self._picked(self.key, rows), self._picked(self.value, rows)

    def clear(self, stay: Tensor) -> None:
        """Keep only the positions `stay` (B, n) of each row."""
        if self.key is not None and self.value is not None:
            B, G, capacity, D = self.key.shape
            # One index_select over (B * G * capacity, D) is faster than a gather with an index of D equal columns.
            rows = (torch.arange(B * G, device=stay.device).view(B, G, 1) * capacity + stay[:, None]).flatten()
            self.key = self.key.flatten(0, 2).index_select(0, rows).view(B, G, stay.shape[1], D)
            self.value = self.value.flatten(0, 2).index_select(0, rows).view(B, G, stay.shape[1], self.value.shape[3])
            self.length = stay.shape[1]

    def _picked(self, held: Tensor, rows: Tensor) -> Tensor:
        """The batch rows `rows` of a buffer. Only the used part is copied."""
        picked = held.new_empty(rows.shape[0], *held.shape[1:])
        torch.index_select(held[:, :, : self.length], 0, rows, out=picked[:, :, : self.length])
        return picked


class FixedCache(KeyValueCache):
    """A cache whose tensors keep their shape: a step writes one position, `place` (1,), and gets all `capacity` positions. The
    mask of the step hides the later ones.

    In a beam search rows share the tokens of the hypotheses that they continue. `slots` (rows, capacity) says where the keys of
    a row lie, as row * capacity + position, so that no key moves.
    """

    def __init__(self, like: KeyValueCache, rows: int, capacity: int, place: Tensor, slots: Tensor | None) -> None:
        super().__init__(capacity)
        assert like.key is not None
        assert like.value is not None
        self.place, self.slots = place, slots
        self.key, self.value = (
            held.new_zeros(rows, capacity, held.shape[1], held.shape[3]).transpose(1, 2) for held in (like.key, like.value)
        )

    def load(self, other: KeyValueCache, rows: Tensor) -> None:
        """Copy the rows `rows` (B',) of another cache to the first rows."""
        for mine, held in ((self.key, other.key), (self.value, other.value)):
            assert mine is not None
            assert held is not None
            mine[: len(rows), :, : other.length] = held[:, :, : other.length].index_select(0, rows)

    def write(
        self, start: int, key: Float[Tensor, "B G n D"], value: Float[Tensor, "B G n V"]
    ) -> tuple[Float[Tensor, "B G K D"], Float[Tensor, "B G K V"]]:
        """Write one key and value at `place`; `start` says nothing here."""
        assert self.key is not None
        assert self.value is not None
        self.key.index_copy_(2, self.place, key)
        self.value.index_copy_(2, self.place, value)
        return self._of_rows(self.key), self._of_rows(self.value)

    def take_over(self, other: FixedCache, rows: Tensor) -> None:
        """Copy what the rows `rows` (B',) of a cache with the same positions read to the first rows."""
        for mine, held in ((self.key, other.key), (self.value, other.value)):
            assert mine is not None
            assert held is not None
            mine[: len(rows)] = other._of_rows(held, rows)

    def _of_rows(self, held: Tensor, rows: Tensor | None = None) -> Tensor:
        """What all rows, or the rows `rows` (B',), read of the keys or values (B, G, K, D)."""
        if self.slots is None:
            return held if rows is None else held.index_select(0, rows)
        by_position, slots = held.transpose(1, 2), self.slots if rows is None else self.slots.index_select(0, rows)
        taken = by_position.flatten(0, 1).index_select(0, slots.flatten())
        return taken.view(len(slots), *by_position.shape[1:]).transpose(1, 2)


class DecodingState:
    """The state of incremental decoding. It is no dataclass: FSDP copies and casts those that a module returns.

    Args:
        target: the input node that is decoded.
        batch: number of rows.
        capacity: number of positions to reserve in the caches.
        length: number of positions so far.
        node_outputs: outputs of the nodes that ran once (the encoder).
        products: the CPU kernel of the products of its steps.
        place: (1,) int64, the position of the next token in a step of fixed shapes, whose `length` is 0; None otherwise.
    """

    def __init__(
        self,
        target: str,
        batch: int,
        capacity: int,
        length: int = 0,
        node_outputs: dict[str, NodeOutput] | None = None,
        products: SearchProducts | None = None,
        place: Tensor | None = None,
    ) -> None:
        self.target, self.batch, self.capacity, self.length = target, batch, capacity, length
        self.node_outputs = {} if node_outputs is None else node_outputs
        self.products = SearchProducts() if products is None else products
        self.place = place
        self.caches: dict[str, KeyValueCache] = {}
        """The cache of every self-attention site."""
        self.crossed: dict[str, tuple[Tensor, Tensor]] = {}
        """Keys (B, G, K, D) and values (B, G, K, V) of every cross-attention site."""
        self.prepared: dict[Hashable, Prepared] = {}
        """The masks of the memories as backends render them, by stack, backend and memory."""
        self.recurrent: dict[str, tuple[Tensor, ...]] = {}
        """States (B, N) of every recurrent node after `length` positions."""
        self.recurrent_new: dict[str, tuple[Tensor, ...]] = {}
        """The same after the current step; `remember` makes them `recurrent`, so that a failed step changes nothing."""
        self.ids: Tensor | None = None
        """(B, length) ids so far."""
        self.visible: Tensor | None = None
        """(B, length) bool, False for padding; None if there is no padding."""
        self.tree: BeamTree | None = None
        """The beams, if they share prefixes."""
        self.memory_rows: SentenceRows | None = None
        """The beams of a step of fixed shapes, which share the keys and values of cross-attention."""
        self.columns: HeadColumns | ListedColumns | None = None
        """The ids whose logits are computed; None for all."""
        self.shares: bool | None = None
        """Whether beams may share prefixes; None until the first branch."""

    def reorder(self, rows: Tensor) -> None:
        """Keep some rows, in a new order.

        Args:
            rows: (B',) integers; a row may occur several times.

        Raises:
            InputError: there is no such row, or beams share prefixes. The state is unchanged.
        """
        self._check_rows(rows)
        if self.tree is not None:
            raise InputError(Diagnostic("TFK073", "the hypotheses of this state share their beginnings", "go on with `branch`"))
        self._keep(rows)
        self._keep_hypotheses(rows)

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on, so that the next step continues there, as speculative decoding needs.

        Args:
            length: the number of positions that stay, from 0 to `self.length`.

        Raises:
            InputError: there is no such position, a recurrent node has only its last state, or beams share prefixes. The
                state is unchanged.
        """
        if type(length) is not int or not 0 <= length <= self.length:
            fix = f"a whole number from 0 to {self.length} is expected"
            raise InputError(Diagnostic("TFK072", f"a decoding state of {self.length} positions is cut to {length!r}", fix))
        if self.tree is not None or self.place is not None:
            raise InputError(Diagnostic("TFK073", "the state of a search cannot be cut back", "start another one"))
        if length == self.length:
            return
        if self.recurrent:
            nodes = ", ".join(f"`{name}`" for name in self.recurrent)
            message = f"{nodes} has only the state after position {self.length}, and none after {length}"
            raise InputError(Diagnostic("TFK073", message, "start another decoding state"))
        self.length = length
        self.ids = None if self.ids is None else self.ids[:, :length]
        self.visible = None if self.visible is None else self.visible[:, :length]
        for cache in self.caches.values():
            cache.length = length

    def branch(self, rows: Tensor, beams: int, kept: Tensor | None) -> None:
        """Continue with several hypotheses per sentence, which share prefixes.

        Keys and values are copied only if sentences are dropped.

        Args:
            rows: (S' * beams,) integers, the row that each hypothesis continues, as in `Model.branch`.
            beams: hypotheses per sentence.
            kept: (S',) integers, the sentences that continue, in increasing order; None for all.
        """
        if kept is not None:
            self._keep(kept)
        if self.tree is None:
            sentences = rows.shape[0] // beams
            positions = torch.arange(self.length, device=rows.device).expand(sentences, -1)  # (S', length)
            seen = torch.ones_like(positions, dtype=torch.bool)
            if self.visible is not None:
                seen = self.visible if kept is None else self.visible.index_select(0, kept)
            self.tree = BeamTree(beams, seen[:, None].expand(-1, beams, -1), positions)
        else:
            self.tree.reorder(rows, kept)
            stay = self.tree.prune()
            if stay is not None:
                for cache in self.caches.values():
                    cache.clear(stay)
        self._keep_hypotheses(rows)

    def _keep_hypotheses(self, rows: Tensor) -> None:
        """Pick the rows of what every hypothesis has of its own, even if hypotheses share prefixes."""
        self.ids, self.visible = _pick(self.ids, rows), _pick(self.visible, rows)
        self.recurrent = {
            name: tuple(tensor.index_select(0, rows) for tensor in tensors) for name, tensors in self.recurrent.items()
        }
        self.batch = int(rows.shape[0])

    def _keep(self, rows: Tensor) -> None:
        self.prepared.clear()
        for cache in self.caches.values():
            cache.reorder(rows)
        for site, (key, value) in self.crossed.items():
            self.crossed[site] = (key.index_select(0, rows), value.index_select(0, rows))
        for name, node_output in self.node_outputs.items():
            padding = Padding(_pick(node_output.padding.visible, rows), _pick(node_output.padding.lengths, rows))
            self.node_outputs[name] = NodeOutput(
                node_output.tensor.index_select(0, rows),
                padding,
                _pick(node_output.ids, rows),
                _pick_all(node_output.layers, rows),
                _pick_all(node_output.states, rows),
            )

    def _check_rows(self, rows: Tensor) -> None:
        fix = f"rows are integers (B',) from 0 to {self.batch - 1}"
        if not isinstance(rows, Tensor):
            raise InputError(Diagnostic("TFK071", f"rows is a {type(rows).__name__}", fix))
        if rows.dtype not in (torch.int64, torch.int32):
            raise InputError(Diagnostic("TFK071", f"rows are {rows.dtype}", fix))
        if rows.dim() != 1 or not len(rows):
            raise InputError(Diagnostic("TFK070", f"rows have shape {tuple(rows.shape)}", fix))
        if rows.device.type == "cpu" and not 0 <= int(rows.min()) <= int(rows.max()) < self.batch:
            raise InputError(Diagnostic("TFK072", f"rows {rows.tolist()} of a decoding state of {self.batch} rows", fix))

    def remember(self, ids: Int[Tensor, "B n"], visible: Bool[Tensor, "B n"] | None) -> None:
        """Append the tokens of a step.

        Args:
            ids: (B, n) the token ids.
            visible: (B, n) bool, False for padding; None if no token is padding.
        """
        if self.visible is None and visible is not None:
            self.visible = torch.ones(self.batch, self.length, dtype=torch.bool, device=ids.device)
        if self.visible is not None:
            new = visible if visible is not None else torch.ones_like(ids, dtype=torch.bool)
            self.visible = torch.cat([self.visible, new], 1)
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], 1)
        self.length += ids.shape[1]
        self.recurrent.update(self.recurrent_new)
        if self.tree is not None:
            self.tree.remember(self.length - ids.shape[1])


def _pick_all(tensors: tuple[Tensor, ...] | None, rows: Tensor) -> tuple[Tensor, ...] | None:
    return None if tensors is None else tuple(tensor.index_select(0, rows) for tensor in tensors)


def _pick(tensor: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if tensor is None else tensor.index_select(0, rows)
