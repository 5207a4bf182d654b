"""The entries of the built-in initialisers."""

from __future__ import annotations

from ...plugin import Initialiser
from . import normal, recurrent, t5, xavier

ENTRIES: list[Initialiser] = [
    Initialiser(
        name="xavier",
        summary="Xavier uniform for linear maps, normal with width^-0.5 for embeddings: the Transformer's own",
        reference="https://proceedings.mlr.press/v9/glorot10a.html",
        draw=xavier.draw,
    ),
    Initialiser(
        name="gpt2",
        summary="normal 0.02; what writes into the residual is divided by sqrt(2 num_layers)",
        reference="https://github.com/openai/gpt-2",
        draw=normal.draw_gpt2,
    ),
    Initialiser(
        name="bert",
        summary="normal 0.02, cut at two standard deviations",
        reference="https://arxiv.org/abs/1810.04805",
        draw=normal.draw_bert,
    ),
    Initialiser(
        name="t5",
        summary="normal with fan_in^-0.5, the score's scale inside the query, embeddings with 1",
        reference="https://arxiv.org/abs/1910.10683",
        draw=t5.draw,
    ),
    Initialiser(
        name="orthogonal",
        summary="orthogonal products of recurrent states, the rest as xavier",
        reference="https://arxiv.org/abs/1312.6120",
        draw=recurrent.draw_orthogonal,
    ),
    Initialiser(
        name="rnnsearch",
        summary="orthogonal products of states, additive scores near zero, the rest normal 0.01",
        reference="https://arxiv.org/abs/1409.0473",
        draw=recurrent.draw_rnnsearch,
    ),
    Initialiser(
        name="uniform",
        summary="uniform between -bound and bound, biases included",
        reference="https://arxiv.org/abs/1508.04025",
        options=recurrent.UniformOptions,
        draw=recurrent.draw_uniform,
    ),
    Initialiser(
        name="normal",
        summary="normal with one standard deviation for every weight",
        options=normal.NormalOptions,
        draw=normal.draw,
    ),
]
