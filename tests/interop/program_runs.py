"""Programs of exports run beside the model that they come from."""

from __future__ import annotations

import json

import torch


def programs_in(directory):
    """What `program.json` says, and its programs by name."""
    said = json.loads((directory / "program.json").read_text())
    return said, {program["name"]: program for program in said["programs"]}


def empty_past(programs, batch):
    """The state before the first token, as the example of the guide makes it."""
    known = {"batch": batch, "past": 0}
    return {
        each["name"]: torch.zeros([known.get(size, size) for size in each["shape"]], dtype=getattr(torch, each["dtype"]))
        for each in programs["step"]["inputs"]
        if each["name"].startswith("past.")
    }


def decoded(model, programs, run, ids, pieces, visible=None, **inputs):
    """Decode given ids in pieces: the logits of the programs, and those of the model.

    Args:
        model: the model.
        programs: the programs by name.
        run: runs a program, `run(name, tensors by name) -> tensors by name`.
        ids: (B, L) the ids of the target.
        pieces: how many ids each step has.
        visible: (B, L) bool, False for padding; by default all are real.
        **inputs: the other inputs of the model.
    """
    visible = torch.ones_like(ids, dtype=torch.bool) if visible is None else visible
    state = empty_past(programs, ids.shape[0])
    state.update(run("encode", inputs) if inputs else {})
    own = model.start(**inputs) if inputs else model.start(batch=ids.shape[0])
    theirs, ours, at = [], [], 0
    for count in pieces:
        new = {"ids": ids[:, at : at + count], "visible": visible[:, at : at + count]}
        outputs = run("step", {**new, **state})
        theirs.append(outputs["logits"])
        state.update({name.replace("present", "past", 1): each for name, each in outputs.items() if name != "logits"})
        ours.append(model.step(own, new["ids"], new["visible"]).logits)
        at += count
    return torch.cat(theirs, 1), torch.cat(ours, 1)
