"""From the requested backends of a site to the choice that the site makes for each class of calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ..attention.backend import check_request
from ..attention.choice import BackendChoice, BoundBackend, bind
from ..catalogue import Catalogue
from ..errors import Diagnostic, SpecError
from ..graph import Target
from ..graph.plan import candidates_for, request_for
from ..slots.options import Component, SlotListField
from ..slots.sublayer import AttentionSite


class BackendResolver:
    """Makes the backend choice of a site from what a spec or a user wishes, on the device the model is built for."""

    def __init__(self, sites: dict[str, AttentionSite], catalogue: Catalogue, device: torch.device, dtype: torch.dtype) -> None:
        self.sites = sites
        self.catalogue = catalogue
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        self.target = Target(device.type, capability, str(dtype).removeprefix("torch."), training=False)
        self.others = catalogue.ready("backend")
        self.bound: dict[str, BoundBackend] = {}

    def __deepcopy__(self, memo: object) -> BackendResolver:
        return self

    def on(self, device: torch.device, dtype: torch.dtype) -> BackendResolver:
        """The same for another device or dtype."""
        return BackendResolver(self.sites, self.catalogue, device, dtype)

    def __call__(self, site: str, requested: Any) -> BackendChoice:
        """Raises BackendRefused where no backend of the wish can serve the site whatever the call."""
        context = self.sites[site]
        parts = self.parts(requested)
        candidates, automatic = candidates_for(parts, self.catalogue)
        bound = tuple(self._bound(entry, options) for entry, options in candidates)
        choice = BackendChoice(site, [part.written() for part in parts], bound, automatic, self.others)
        if self.target.device != "meta":
            request = request_for(context, self.target)
            if not any(check_request(entry, request, options).accepted for entry, options in candidates):
                choice.check_request(request)
        return choice

    def parts(self, requested: Any) -> tuple[Component, ...]:
        """A wish such as "sdpa", {"kind": "sdpa", ...}, "auto" or a list of these, as parts."""
        from pydantic import ValidationError

        try:
            parts = SlotListField("backend").resolve(requested, SimpleNamespace(context={"catalogue": self.catalogue}))
        except ValidationError as reason:
            first = reason.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise SpecError(Diagnostic("TFK021", f"`{requested}` is no attention backend: {place}: {first['msg']}")) from None
        except ValueError as reason:
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
