"""Merges one located value over another; the nearer value wins.

mapping over mapping     merged key by key
another `kind`           replaces everything
a name in a slot         equals the mapping {kind: name}
lists and scalars        replace
null                     removes the key in `extends` and `--set`; otherwise null is a value
"""

from __future__ import annotations

from collections.abc import Mapping

from .located import INVALID, Located

INSTEAD = {"num_layers": "layers", "layers": "num_layers"}
"""Two keys that exclude each other: the nearer one removes the other."""


def as_part(node: Located) -> Located:
    """The mapping form of a part: `rms_norm` becomes `{kind: rms_norm}`, at the same location."""
    return node.holding({"kind": node}) if isinstance(node.value, str) else node


def over(far: Located | None, near: Located, slots: Mapping[str, str], key: str = "", removing: bool = False) -> Located:
    """`near` merged over `far`. `slots` names the keys that hold a part; `key` is the name of this value."""
    if far is None:
        return near
    if key in slots:
        far, near = as_part(far), as_part(near)
    if far.value is INVALID and isinstance(near.value, dict):
        return near.holding(INVALID)
    if not isinstance(far.value, dict) or not isinstance(near.value, dict):
        return near
    if far.kind is not None and near.kind is not None and far.kind != near.kind:
        return near
    merged = dict(far.value)
    for name, child in near.value.items():
        if name in INSTEAD and INSTEAD[name] not in near.value:
            merged.pop(INSTEAD[name], None)
        if removing and child.value is None and name in merged:
            del merged[name]
        else:
            merged[name] = over(merged.get(name), child, slots, name, removing)
    return near.holding(merged)
