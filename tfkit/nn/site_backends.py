"""The attention sites of a model, and the backends they use."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from ..attention.choice import BackendChoice
from ..errors import Diagnostic, InputError
from ..errors.arguments import in_words
from .multi_head import MultiHeadAttention

ResolveBackends = Callable[[Mapping[str, Any], torch.device | None, torch.dtype | None], dict[str, BackendChoice]]
"""Backend choices by site from the requested backends by site. Raises BackendRefused, with every refusal in one error, if no
requested backend can serve a site on this device in this dtype, or on any device in any dtype (None)."""


@runtime_checkable
class AttentionNode(Protocol):
    """A node module that owns attention sites, such as `Stack`. A plugin's module needs these two members."""

    memory_only_attended: bool
    """True if the node reads the outputs of other nodes only through its attention sites. Beams may then share one row of a
    memory per sentence; otherwise `Model.branch` copies the rows for every beam."""

    def attention_sites(self) -> Iterable[tuple[int, MultiHeadAttention]]:
        """The attention sites of the node.

        Returns:
            Each multi-head attention with the `index` that its `forward` gets, once per index. The name of a site is
            `<node>.<index>.<name of the attention>`, as in the entry's `sites`.
        """
        ...


class AttentionSiteUse(NamedTuple):
    """One application of a multi-head attention: the module, the index of the application, and the name of the site."""

    attention: MultiHeadAttention
    application: int
    site: str


class SiteBackends:
    """Finds the attention sites of a model's nodes and sets their backends."""

    def __init__(self, nodes: nn.ModuleDict, resolve: ResolveBackends) -> None:
        self.nodes, self.resolve = nodes, resolve
        # Checked once: Dynamo cannot trace an `isinstance` with a protocol.
        self.owners = tuple(name for name, node in nodes.items() if isinstance(node, AttentionNode))

    def uses(self) -> list[AttentionSiteUse]:
        """All sites, in the order of the nodes."""
        return [
            AttentionSiteUse(attention, index, f"{name}.{index}.{attention.name}")
            for name in self.owners
            for index, attention in self.nodes[name].attention_sites()  # type: ignore[operator]
        ]

    def choices(self) -> dict[str, BackendChoice]:
        """The backend choice of every site."""
        return {site: attention.choices[index] for attention, index, site in self.uses()}

    def attention(self, site: str) -> MultiHeadAttention:
        """The module of one site. Raises InputError if there is no such site."""
        modules = {use.site: use.attention for use in self.uses()}
        if site not in modules:
            near = difflib.get_close_matches(site, modules, 1)
            fix = f"did you mean `{near[0]}`?" if near else f"sites: {', '.join([*modules][:6]) or 'none'}"
            raise InputError(Diagnostic("TFK076", f"there is no attention site `{site}`", fix))
        return modules[site]

    def matching(self, patterns: str | Iterable[str]) -> frozenset[str]:
        """The sites that match any of the patterns, in which `*` stands for any text.

        Raises:
            InputError: a pattern is no text, or matches no site.
        """
        patterns = [patterns] if isinstance(patterns, str) else list(patterns) if isinstance(patterns, Iterable) else [patterns]
        if other := [pattern for pattern in patterns if not isinstance(pattern, str)]:
            message = f"{in_words(other[0])} is no name of an attention site"
            raise InputError(Diagnostic("TFK076", message, "give names, or patterns such as `decoder.*`"))
        if not patterns:
            return frozenset()
        known = [site for _, _, site in self.uses()]
        matched: set[str] = set()
        for pattern in patterns:
            sites = [site for site in known if _matches(site, pattern)]
            if not sites:
                message = f"`{pattern}` matches no attention site"
                near = difflib.get_close_matches(pattern, known, 1)
                listed = f"sites: {', '.join(known[:6]) or 'none'}{', ...' if len(known) > 6 else ''}"
                fix = f"did you mean `{near[0]}`? {listed}" if near else listed
                raise InputError(Diagnostic("TFK076", message, fix))
            matched.update(sites)
        return frozenset(matched)

    def set(self, requested: Mapping[str, Any], device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        """Choose the backends of the given sites. Changes nothing if it raises.

        Raises:
            BackendRefused: a requested backend cannot serve its site on this device in this dtype, or, without them, on any;
                with the refusals of all sites.
            SpecError: a request names no backend.
        """
        choices = self.resolve(requested, device, dtype)
        for attention, index, site in self.uses():
            if site in choices:
                attention.choices[index] = choices[site]

    def not_thread_safe(self, device: str) -> list[str]:
        """Names of the backends in use on a device that only one thread may call at a time."""
        return sorted({name for choice in self.choices().values() for name in choice.not_thread_safe(device)})


def _matches(site: str, pattern: str) -> bool:
    """Whether a pattern, in which `*` stands for any text, matches a site. Dynamo cannot trace `fnmatch`."""
    first, *rest = pattern.split("*")
    if not rest:
        return site == pattern
    *middle, last = rest
    if not site.startswith(first) or not site[len(first) :].endswith(last):
        return False
    site = site[len(first) : len(site) - len(last)]
    for piece in middle:
        at = site.find(piece)
        if at < 0:
            return False
        site = site[at + len(piece) :]
    return True
