"""Hard word alignments from the weights of cross-attention.

Each target piece is aligned with the source piece that has the largest weight in the step that predicts it; special tokens and
pieces without a visible character take no part. A source and a target word are linked if two of their pieces are. Unless the
model was trained to align, the weights are the mean over the heads of the last layer but one.   Garg et al. 2019,
https://aclanthology.org/D19-1453/, sections 3 and 5
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..data.pharaoh import Link
from ..data.piece_words import Words
from ..errors import Diagnostic, InputError
from ..io.alignment_site import AlignmentSite
from ..nn.model import Model


def alignment_site(model: Model, target: str, site: str | None = None, head: int | None = None) -> AlignmentSite:
    """The cross-attention of the decoded input whose weights align: the name or pattern matches one site; by default it is the
    last but one, or the only one. By default the heads count by their mean. Raises InputError without such a site or head."""
    uses = {
        use.site: use
        for use in model.attention_sites()
        if use.site in model.memory_sites and use.site.split(".")[0] in model.plan.followers[target]
    }
    listed = ", ".join(uses)
    if not uses:
        message = f"`{model.plan.name}` has no cross-attention, so nothing aligns its words"
        raise InputError(Diagnostic("TFK076", message, "take a model whose decoder attends to its source"))
    chosen = list(uses)[-2:][:1]
    if site is not None:
        matched = model.backends.matching([site])
        chosen = [name for name in uses if name in matched]
        if len(chosen) != 1 or len(matched) != 1:
            message = f"`{site}` matches {len(matched)} sites, of which {len(chosen)} align a translation with its source"
            raise InputError(Diagnostic("TFK076", message, f"name one of {listed}"))
    heads = uses[chosen[0]].attention.config.num_heads
    if head is not None and not 0 <= head < heads:
        raise InputError(Diagnostic("TFK076", f"`{chosen[0]}` has no head {head}", f"its heads are 0 to {heads - 1}"))
    return AlignmentSite(site=chosen[0], head=head)


def requested_site(model: Model, target: str, requested: AlignmentSite | bool) -> AlignmentSite | None:
    """The cross-attention that a caller asks for: True for the default one, False for none. Raises InputError as
    `alignment_site`."""
    if requested is False:
        return None
    return alignment_site(model, target, *(() if requested is True else (requested.site, requested.head)))


def check_keys(site: str, keys: int, tokens: int) -> None:
    """Raises InputError unless a site has one key for each source token."""
    if keys != tokens:
        message = f"`{site}` has {keys} keys for {tokens} source tokens, so its weights align no words"
        raise InputError(Diagnostic("TFK076", message, "name a site with one key per token"))


def align(weights: Tensor, head: int | None, sources: Sequence[Words], targets: Sequence[Words]) -> list[int | None]:
    """The source piece that each target piece is aligned with, None for pieces without a word. `weights` (H, N, K) has in row n
    those with which target piece n is predicted, of one head, or the mean over all for None. `sources` and `targets` are the
    words of each piece."""
    of_pieces = weights.mean(0) if head is None else weights[head]  # (N, K)
    hidden = of_pieces.new_tensor([not words for words in sources]).bool()
    if bool(hidden.all()):
        return [None] * len(targets)
    best = of_pieces.masked_fill(hidden, -1.0).argmax(1).tolist()
    return [best[at] if words else None for at, words in enumerate(targets)]


def word_links(pieces: Sequence[int | None], sources: Sequence[Words], targets: Sequence[Words]) -> tuple[Link, ...]:
    """The links of words whose pieces are aligned, sorted."""
    links = {
        (one, other) for at, piece in enumerate(pieces) if piece is not None for one in sources[piece] for other in targets[at]
    }
    return tuple(sorted(links))
