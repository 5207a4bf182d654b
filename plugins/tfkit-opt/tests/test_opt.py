"""OPT comes in with its numbers and goes out with its bytes, by a map that a plugin ships."""

from __future__ import annotations

import pytest
import tfkit_opt
import torch

import tfkit
from parity.comparison import all_in_float64
from tfkit.interop.huggingface import write
from tfkit.interop.huggingface_import import ORIGIN, plan_import, run_import


@pytest.mark.slow
def test_opt(tmp_path, monkeypatch):
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"hidden_size": 24, "word_embed_proj_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "ffn_dim": 40}
    config = OPTConfig(**sizes, vocab_size=61, max_position_embeddings=37, attn_implementation="eager")
    torch.manual_seed(0)
    with all_in_float64():
        theirs = OPTForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.0, 0.3)
    theirs.save_pretrained(tmp_path / "hf")
    installed = tfkit.load_catalogue()
    catalogue = installed if "opt" in installed.names("weight_map") else installed.with_plugin(tfkit_opt, "opt")
    plan = plan_import(tmp_path / "hf", catalogue)
    assert not plan.unknown
    model = tfkit.load(run_import(plan, tmp_path / "model", catalogue)).eval()
    ids, real = torch.randint(3, 61, (3, 17)), torch.arange(17) < torch.tensor([[17], [5], [11]])
    with torch.no_grad(), all_in_float64():
        made = model(tokens=ids, masks={"tokens": real})["logits"][real]
        reference = theirs(ids, attention_mask=real.long()).logits[real]
    torch.testing.assert_close(made, reference, rtol=1e-12, atol=1e-12)
    (tmp_path / "out").mkdir()
    monkeypatch.setattr("tfkit.interop.huggingface.load_catalogue", lambda: catalogue)
    write(model, {ORIGIN: (tmp_path / "model" / ORIGIN).read_text()}, tmp_path / "out")
    for file in (tmp_path / "hf").iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name
