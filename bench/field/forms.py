"""Forms that differ a little from those of the suite. bench/field/functions.yaml names them as signatures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfkit_conformance import FunctionCall, Rendering, Signature
from tfkit_conformance.callables.locate import signature_named


def with_softcap(form: str, keyword: str) -> Signature:
    """The form with a parameter for the soft cap of scores."""
    usual = signature_named(form)

    def render(inputs: Any, takes: Any) -> Rendering:
        made = usual.render(inputs, takes)
        if inputs.softcap is None:
            return made
        return replace(
            made, calls=tuple(FunctionCall(c.arguments, {**c.keywords, keyword: inputs.softcap}) for c in made.calls)
        )

    return replace(
        usual, name=f"{form} with {keyword}", features={**usual.features, "softcap": {"softcap": True}}, render=render
    )


SOFTCAP = with_softcap("huggingface", "softcap")
SOFTCAP_NUMPY = with_softcap("numpy", "softcap")

FLASH = replace(signature_named("flash_attn"), name="flash_attn, empty rows undefined", zero_rows=False)
"""The form of flash_attn without its promise that a query that sees no key has a zero output."""
