"""An active implementation of flash attention is recorded by reports, plans and saved models."""

import json
import re

import pytest
import torch.nn.attention

from tfkit import InputError, build, load_catalogue, save
from tfkit.cli import main
from tfkit.inspection import Target, flash_implementation
from tfkit.view.plan_data import plan_data
from tfkit_conformance.callables.flash import flash_implementation_active
from tfkit_conformance.resolve import versions
from tfkit_conformance.verification.verifier import versions as verify_versions


@pytest.mark.parametrize("active", [None, "FA4"])
def test_it_is_recorded_where_it_is_active(monkeypatch, tmp_path, active):
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: active)
    catalogue = load_catalogue()
    assert flash_implementation() == active
    assert versions("cpu").get("flash attention") == active
    assert verify_versions(catalogue).get("flash attention") == active
    assert plan_data("m", Target(), [], catalogue).get("flash_implementation") == active
    save(build("specs/transformer-tiny.yaml"), tmp_path / "model")
    assert json.loads((tmp_path / "model" / "plan.json").read_text()).get("flash_implementation") == active


OWN = """\
import torch
from torch.nn import attention

WRONG = {wrong}


def flash(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    scores = query @ key.mT * (scale if scale is not None else query.shape[-1] ** -0.5)
    scores = scores if attn_mask is None else scores + attn_mask
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -torch.inf)
    return torch.softmax(scores, -1) @ value * (1.5 if WRONG else 1.0), torch.logsumexp(scores.float(), -1)


class Handle:
    def __init__(self):
        self.library = torch.library.Library("aten", "IMPL")
        self.library.impl("_scaled_dot_product_flash_attention_for_cpu", flash, "CPU", allow_override=True)

    def remove(self):
        self.library._destroy()


attention.register_flash_attention_impl("OWN", register_fn=Handle)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("wrong", [False, True])
def test_the_command_activates_one_and_finds_what_is_wrong_with_it(wrong, tmp_path, monkeypatch, capsys):
    (tmp_path / "own.py").write_text(OWN.format(wrong=wrong))
    monkeypatch.chdir(tmp_path)
    words = ["--callable", "torch.nn.functional:scaled_dot_product_attention", "--signature", "sdpa", "--supports", "causal"]
    words += ["--profile", "quick", "--dtype", "float32", "--flash-implementation", "own:OWN", "--json", "-"]
    code = main(["conformance", *words])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["verdict"]) == ((1, "NONCONFORMANT") if wrong else (0, "CONFORMANT"))
    assert report["versions"]["flash attention"] == "OWN"
    assert torch.nn.attention.current_flash_attention_impl() is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "FA9",
            "`FA9`; to use your own, name the module that registers it, as MODULE:NAME; did you mean `FA4`?",
        ),
        ("FA3", "activating FA3 raised ModuleNotFoundError"),
        ("missing_module:OWN", "there is no module `missing_module`"),
        ("own:OTHER", "no implementation of flash attention `OTHER`"),
    ],
)
def test_what_cannot_be_activated_is_said(name, said, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("raise_nothing = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(said)), flash_implementation_active(name):
        pass
    assert torch.nn.attention.current_flash_attention_impl() is None
