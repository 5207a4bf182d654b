"""From the requested backends of a site to its backend choice."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from ..attention.backend import check_request
from ..attention.choice import BackendChoice, BoundBackend, bind
from ..catalogue import Catalogue
from ..errors import BackendRefused, Diagnostic, SpecError
from ..graph import Target
from ..graph.plan import candidates_for, request_for
from ..slots.options import OF_LISTS, Component, SlotListField
from ..slots.sublayer import AttentionSite


class BackendResolver:
    """Makes the backend choices of sites from requested backends.

    Args:
        sites: the attention sites of the graph by name.
        catalogue: where backends are found.
    """

    def __init__(self, sites: dict[str, AttentionSite], catalogue: Catalogue) -> None:
        self.sites = sites
        self.catalogue = catalogue
        self.others = catalogue.ready("backend")
        self.bound: dict[str, BoundBackend] = {}

    def __deepcopy__(self, memo: object) -> BackendResolver:
        return self

    def __call__(
        self, requested: Mapping[str, Any], device: torch.device | None, dtype: torch.dtype | None
    ) -> dict[str, BackendChoice]:
        """The backend choice of every site in `requested`.

        Args:
            requested: by site, a backend as a spec writes it: "sdpa", {"kind": "sdpa", ...}, "auto", or a list of these.
            device: the device of the calls; None if the model may still move: a call is checked on its device anyway. On
                `meta` nothing is refused.
            dtype: the dtype of queries, keys and values; None if the model may still be cast.

        Raises:
            BackendRefused: no requested backend of a site can serve it, whatever the call; all such sites in one error.
            SpecError: a request names no backend.
        """
        capability = torch.cuda.get_device_capability(device) if device is not None and device.type == "cuda" else None
        kind, numbers = None if device is None else device.type, None if dtype is None else str(dtype).removeprefix("torch.")
        target = Target(kind, capability, numbers, training=False)
        choices: dict[str, BackendChoice] = {}
        refused: list[Diagnostic] = []
        for site, backend in requested.items():
            try:
                choices[site] = self._choice(site, backend, target)
            except BackendRefused as refusal:
                refused += refusal.diagnostics
        if refused:
            raise BackendRefused(refused)
        return choices

    def _choice(self, site: str, requested: Any, target: Target) -> BackendChoice:
        parts = self.parts(requested)
        candidates, automatic = candidates_for(parts, self.catalogue)
        if automatic and not torch.cuda.is_available():  # `auto` imports no kernels for a device that is not here
            candidates = [both for both in candidates if {device.kind for device in both[0].capabilities.devices} != {"cuda"}]
        bound = tuple(self._bound(entry, options) for entry, options in candidates)
        choice = BackendChoice(site, [part.written() for part in parts], bound, automatic, self.others)
        if target.device != "meta":
            request = request_for(self.sites[site], target)
            if not any(check_request(entry, request, options).accepted for entry, options in candidates):
                choice.check_request(request)
        return choice

    def parts(self, requested: Any) -> tuple[Component, ...]:
        """The components that a request names. Raises SpecError if it names no backend."""
        from pydantic import ValidationError

        try:
            parts = SlotListField("backend").resolve(requested, SimpleNamespace(context={"catalogue": self.catalogue}))
        except ValidationError as reason:
            first = reason.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise SpecError(Diagnostic("TFK021", f"`{requested}` is no attention backend: {place}: {first['msg']}")) from None
        except ValueError as reason:
            if getattr(reason, "type", "") in OF_LISTS:
                raise SpecError(Diagnostic("TFK021", f"attention backends: {reason}")) from None
            name = requested if isinstance(requested, str) else str(requested)
            fix = self.catalogue.why_missing("backend", name)
            raise SpecError(Diagnostic("TFK012", f"`{name}` names no attention backend: {reason}", fix)) from None
        if len(parts) > 1 and any(part.kind == "auto" for part in parts):
            fix = "ask for `auto`, or for a list without it"
            raise SpecError(Diagnostic("TFK021", "`auto` chooses among all backends, so it stands alone", fix))
        return parts

    def _bound(self, entry: Any, options: Any) -> BoundBackend:
        key = f"{entry.name} {options!r}"
        if key not in self.bound:
            self.bound[key] = bind(entry, options)
        return self.bound[key]
