"""Trials drawn at random: a spec, the lengths of its batch, a seed."""

from __future__ import annotations

from hypothesis import strategies as st

import tfkit
from product.evaluated import Trial
from whole_models.strategies import SHAPES, model_specs

SIZES = st.lists(st.integers(1, 9), min_size=2, max_size=2).map(tuple)


@st.composite
def trials(draw, catalogue: tfkit.Catalogue, shapes=SHAPES, deepest=3) -> Trial:
    return Trial(draw(model_specs(catalogue, shapes, deepest)), catalogue, draw(SIZES), draw(st.integers(0, 2**16)))
