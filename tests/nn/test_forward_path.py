"""A forward pass can be read: it enters few modules."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest
import torch

import tfkit

ROOT = Path(tfkit.__file__).parent
MAX_MODULES = 18


@pytest.mark.parametrize("spec", ["transformer-tiny", "gpt-char"])
def test_a_forward_pass_enters_few_modules(spec: str) -> None:
    model = tfkit.build(f"specs/{spec}.yaml", seed=0).eval()
    inputs = {name: torch.randint(4, 60, (3, 7)) for name in model.plan.inputs}
    entered: set[Path] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.add(Path(frame.f_code.co_filename))

    with torch.no_grad():
        model(**inputs)  # imports what is imported at first use
        before = sys.getprofile()
        sys.setprofile(enter)
        try:
            model(**inputs)
        finally:
            sys.setprofile(before)
    own = sorted(str(path.relative_to(ROOT)) for path in entered if ROOT in path.parents)
    assert "nn/multi_head.py" in own
    assert len(own) <= MAX_MODULES, own
