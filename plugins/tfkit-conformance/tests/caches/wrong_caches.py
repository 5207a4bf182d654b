"""Caches with one mistake each, of the kinds that decoding kernels have, and two more that are right."""

from __future__ import annotations

import torch

from tfkit_conformance.caches.paged import PagedCache, RingCache, causal


class Joined:
    """Right: one growing tensor a row, with no pages."""

    def __init__(self, *, batch, heads, kv_heads, head_dim, max_length, dtype, device="cpu"):
        self.rows = [torch.zeros(2, kv_heads, 0, head_dim, dtype=dtype, device=device) for _ in range(batch)]

    def append(self, keys, values, lengths):
        both = torch.stack([keys, values])
        self.rows = [torch.cat([row, both[:, b, :, : lengths[b]]], 2) for b, row in enumerate(self.rows)]

    def attend(self, query, scale):
        return torch.stack([causal(query[b], *row, scale) for b, row in enumerate(self.rows)])

    def reorder(self, rows):
        self.rows = [self.rows[b] for b in rows]

    def branch(self, rows):
        self.reorder(rows)

    def truncate(self, lengths):
        self.rows = [row[:, :, :length] for row, length in zip(self.rows, lengths, strict=True)]

    def free(self, rows):
        self.rows = [row[:, :, :0] if b in rows else row for b, row in enumerate(self.rows)]


class LastPositionUnseen(Joined):
    """Attends before it has written the newest position."""

    def attend(self, query, scale):
        return torch.stack([causal(query[b], *row[:, :, : max(1, row.shape[2] - 1)], scale) for b, row in enumerate(self.rows)])


class ChunksFromZero(Joined):
    """Queries of a later chunk stand at its own beginning: they see each other all, as in a first chunk without a mask."""

    def attend(self, query, scale):
        outputs = []
        for b, row in enumerate(self.rows):
            alone = query.shape[2] > 1 and row.shape[2] > query.shape[2]
            each = [causal(one[:, None], *row, scale) for one in query[b].unbind(1)]
            outputs.append(torch.cat(each, 1) if alone else causal(query[b], *row, scale))
        return torch.stack(outputs)


class OneLengthForAll(Joined):
    """Takes the length of the longest row for every row: zeros are attended to."""

    def attend(self, query, scale):
        longest = max(row.shape[2] for row in self.rows)
        padded = [torch.nn.functional.pad(row, (0, 0, 0, longest - row.shape[2])) for row in self.rows]
        return torch.stack([causal(query[b], *row, scale) for b, row in enumerate(padded)])


class KeyedOnLength(Joined):
    """Keeps the float32 copy of the keys for as long as the lengths do not change."""

    seen: tuple[int, ...] = ()

    def attend(self, query, scale):
        lengths = tuple(row.shape[2] for row in self.rows)
        if lengths != self.seen:
            self.seen, self.copies = lengths, [row.clone() for row in self.rows]
        return torch.stack([causal(query[b], *row, scale) for b, row in enumerate(self.copies)])


class ExchangesInPlace(Joined):
    """Reorders row by row, so that a later row takes what an earlier one has become."""

    def reorder(self, rows):
        for b, taken in enumerate(rows):
            self.rows[b] = self.rows[taken]


class ValuesStay(Joined):
    """Reorders the keys alone."""

    def reorder(self, rows):
        lengths = [row.shape[2] for row in self.rows]
        for b, row in enumerate([self.rows[taken] for taken in rows]):
            kept = self.rows[b][1] if lengths[b] == row.shape[2] else row[1]
            self.rows[b] = torch.stack([row[0], kept])


class KeepsOneTooMany(Joined):
    """Takes back one position too few where more than one goes."""

    def truncate(self, lengths):
        self.rows = [row[:, :, : length + (row.shape[2] - length > 1)] for row, length in zip(self.rows, lengths, strict=True)]


class FreesItsNeighbour(Joined):
    """Frees the row behind the last one, too, in a batch with room for it."""

    def free(self, rows):
        super().free([*rows, rows[-1] + 1] if rows else rows)


class SharesWithoutCopies(PagedCache):
    """Rows that share a page write into it."""

    def _writable(self, row, position):
        self.uses.update({page: 1 - self.uses[page] for page in self.pages[row]})
        return super()._writable(row, position)


class FirstPageShared(PagedCache):
    """Copies a shared page before it writes, but without the values."""

    def _writable(self, row, position):
        number, _ = divmod(position, self.page_size)
        shared = number < len(self.pages[row]) and self.uses[self.pages[row][number]] > 1
        page, place = super()._writable(row, position)
        if shared:
            self.pool[1, page, :place] = 0
        return page, place


class FreedTwice(PagedCache):
    """Gives a page back as often as rows hold it, while others still read it."""

    def _release(self, pages):
        for page in pages:
            self.unused.append(page)
            self.uses[page] -= 1


class PageOfAFreedRow(PagedCache):
    """A freed row keeps its list of pages, and writes on into them."""

    def free(self, rows):
        for row in rows:
            self._release(self.pages[row])
            self.lengths[row] = 0


class LostAtTheBorder(PagedCache):
    """Truncation to the border of a page gives the page before it back as well."""

    def truncate(self, lengths):
        for row, length in enumerate(lengths):
            if length and length % self.page_size == 0 and length < self.lengths[row]:
                self.pool[:, self.pages[row][length // self.page_size - 1], -1] = 0
        super().truncate(lengths)


class SecondPageLate(PagedCache):
    """The first position of every further page is written into the page before it."""

    def _writable(self, row, position):
        page, place = super()._writable(row, position)
        return (self.pages[row][-2], self.page_size - 1) if position and place == 0 else (page, place)


class StaleCount(PagedCache):
    """Rows that take another's place keep their own lengths."""

    def reorder(self, rows):
        lengths = self.lengths
        super().reorder(rows)
        self.lengths = [min(old, new) for old, new in zip(lengths, self.lengths, strict=True)]


class EvictsEarly(RingCache):
    """The ring has room for one position fewer than the window."""

    spare = -1


class EvictsLate(RingCache):
    """Sees one position more than the window."""

    def attend(self, query, scale):
        self.window += 1
        found = super().attend(query, scale)
        self.window -= 1
        return found


class WrapsOnce(RingCache):
    """Forgets how often it has gone round after the second time."""

    def append(self, keys, values, lengths):
        super().append(keys, values, lengths)
        self.lengths = [length - self.size if length >= 3 * self.size else length for length in self.lengths]
        self.lengths = [max(1, length - 1) if length == 2 * self.size else length for length in self.lengths]


class OwnScale(Joined):
    """Takes the usual scale, whatever it is given."""

    def attend(self, query, scale):
        return super().attend(query, query.shape[-1] ** -0.5)


class SixtyFourFeatures(Joined):
    """Reads no feature beyond the first 64."""

    def attend(self, query, scale):
        return super().attend(torch.cat([query[..., :64], 0 * query[..., 64:]], -1), scale)


class SharedHeadTurned(Joined):
    """Takes the query heads in another order where they share one key/value head."""

    def attend(self, query, scale):
        return super().attend(query.flip(1) if self.rows[0].shape[1] == 1 else query, scale)


class OneRowTwice(Joined):
    """Adds up twice in a batch of one row."""

    def attend(self, query, scale):
        return super().attend(query, scale) * (2 if len(query) == 1 else 1)


class NoMaximum(Joined):
    """A softmax that does not subtract the highest score, and overflows."""

    def attend(self, query, scale):
        outputs = []
        for row, (keys, values) in zip(query.float(), self.rows, strict=True):
            keys, values = (each.repeat_interleave(len(row) // len(each), 0).float() for each in (keys, values))
            n, Q = keys.shape[1], row.shape[1]
            weights = (scale * row @ keys.mT).exp() * torch.ones(Q, n).tril(n - Q)
            outputs.append(weights / weights.sum(-1, keepdim=True) @ values)
        return torch.stack(outputs).to(query.dtype)


class HiddenPages(Joined):
    """Pages of 256 positions, which it does not say; truncation to a border loses a position."""

    def truncate(self, lengths):
        super().truncate(lengths)
        for row in self.rows:
            if row.shape[2] and row.shape[2] % 256 == 0:
                row[:, :, -1] = 0


class BranchesInOrder(Joined):
    """Repeats rows one after the other, as a search with equal numbers of beams does, whatever order it is given."""

    def branch(self, rows):
        super().branch(sorted(rows))


class BranchesWithOldLengths(PagedCache):
    """Rows that were there before keep their lengths."""

    def branch(self, rows):
        lengths = self.lengths
        super().branch(rows)
        self.lengths = [min(pair) for pair in zip(lengths, self.lengths, strict=False)] + self.lengths[len(lengths) :]


class BranchesWithoutCounting(PagedCache):
    """New rows share pages that are counted once, and write into them."""

    def branch(self, rows):
        pages = [list(self.pages[row]) for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
        self.uses.update(page for each in map(self.pages.__getitem__, set(rows)) for page in each)
        for each in self.pages:
            self._release(each)
        self.pages = pages


class BranchesKeepTheDropped(Joined):
    """Where fewer rows go on, the first ones do."""

    def branch(self, rows):
        super().branch(rows if len(rows) >= len(self.rows) else range(len(rows)))


class BranchesTheNewestLate(Joined):
    """A third branch of one row gets all but its newest position."""

    def branch(self, rows):
        seen = {}
        taken = [(row, seen.update({row: seen.get(row, 0) + 1}) or seen[row]) for row in rows]
        self.rows = [self.rows[row][:, :, :-1] if times == 3 else self.rows[row] for row, times in taken]


class WrongFrom700(Joined):
    """From 700 positions on, the oldest is lost."""

    def attend(self, query, scale):
        return torch.stack([
            causal(query[b], *(row[:, :, 1:] if row.shape[2] >= 700 else row), scale) for b, row in enumerate(self.rows)
        ])  # fmt: skip


class WrongFromRow37(Joined):
    def append(self, keys, values, lengths):
        super().append(keys, values, lengths)
        if len(self.rows) > 37:
            self.rows[37] = self.rows[36]


class WrongBehind1024(Joined):
    """Its limit is not in the source as a number of its own."""

    def append(self, keys, values, lengths):
        super().append(keys, values, lengths)
        self.rows = [row[:, :, -(32**2) :] for row in self.rows]


class SharedByAllCaches(Joined):
    """The rows are those of the class."""

    def append(self, keys, values, lengths):
        super().append(keys, values, lengths)
        SharedByAllCaches.newest = self.rows

    def attend(self, query, scale):
        self.rows = SharedByAllCaches.newest
        return super().attend(query, scale)


class OneBuffer(Joined):
    """All outputs of one shape are one tensor."""

    def attend(self, query, scale):
        output = super().attend(query, scale)
        kept = self.__dict__.setdefault("buffers", {}).setdefault(tuple(output.shape), torch.empty_like(output))
        return kept.copy_(output)


class ScalesItsQuery(Joined):
    def attend(self, query, scale):
        output = super().attend(query, scale)
        query.mul_(scale)
        return output


WRONG = {
    WrongFrom700: "numbers of the source", WrongFromRow37: "numbers of the source",
    WrongBehind1024: "unusual sizes", SharedByAllCaches: "two caches", OneBuffer: "steps", ScalesItsQuery: "steps",
    LastPositionUnseen: "steps", ChunksFromZero: "prefill and chunks", OneLengthForAll: "steps", KeyedOnLength: "truncate",
    ExchangesInPlace: "reorder", ValuesStay: "reorder", KeepsOneTooMany: "truncate", FreesItsNeighbour: "free",
    SharesWithoutCopies: "reorder", FirstPageShared: "reorder", FreedTwice: "reorder", PageOfAFreedRow: "free",
    LostAtTheBorder: "truncate", SecondPageLate: "steps", StaleCount: "reorder", EvictsEarly: "steps", EvictsLate: "steps",
    WrapsOnce: "steps", OwnScale: "steps", SixtyFourFeatures: "one row", SharedHeadTurned: "steps", OneRowTwice: "one row",
    NoMaximum: "drawn programs", HiddenPages: "truncate", BranchesInOrder: "branch", BranchesWithOldLengths: "branch",
    BranchesWithoutCounting: "branch", BranchesKeepTheDropped: "branch", BranchesTheNewestLate: "branch",
}  # fmt: skip
"""Each with a check that must see it."""
