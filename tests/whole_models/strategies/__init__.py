"""Hypothesis strategies of whole models: random valid specs from every part that a catalogue holds.

    @given(model_specs(catalogue))
    def test_my_part(spec): ...

Every part of every plugin is drawn, its options read off its options model. A spec is drawn so that the rules of its parts
hold; the few that the graph refuses all the same are thrown away.
"""

from __future__ import annotations

from .specs import SHAPES, model_specs, written_models

__all__ = ["SHAPES", "model_specs", "written_models"]
