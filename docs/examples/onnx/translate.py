"""Translate lines with the files of `tfkit export MODEL --to onnx -o DIR`: python translate.py DIR < lines"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

directory = Path(sys.argv[1])
info = json.loads((directory / "program.json").read_text())
joint = directory / "tokeniser.json"
source, target = (
    Tokenizer.from_file(str(joint if joint.exists() else directory / f"{name}.json")) for name in ("source", "target")
)
programs = {each["name"]: each for each in info["programs"]}
sessions = {name: onnxruntime.InferenceSession(directory / each["file"]) for name, each in programs.items()}
special = info["ids"][info["decoded"]]


def run(name, tensors):
    wanted = {each["name"]: tensors[each["name"]] for each in programs[name]["inputs"]}
    return dict(zip((each["name"] for each in programs[name]["outputs"]), sessions[name].run(None, wanted), strict=True))


sources = [[*source.encode(line.strip()).ids, special["end_id"]] for line in sys.stdin]
rows, longest = len(sources), max(map(len, sources))
padded = np.array([ids + [special["pad_id"]] * (longest - len(ids)) for ids in sources])
state = run("encode", {"source": padded})
for each in programs["step"]["inputs"]:
    if each["name"].startswith("past."):
        empty = [{"batch": rows, "past": 0}.get(size, size) for size in each["shape"]]
        state.setdefault(each["name"], np.zeros(empty, each["dtype"]))
ids, found = np.full((rows, 1), special["start_id"]), np.zeros((rows, 0), np.int64)
limit = min(longest + 50, info["max_lengths"].get(info["decoded"], longest + 50))
while found.shape[1] < limit and not (found == special["end_id"]).any(1).all():
    outputs = run("step", {"ids": ids, "visible": np.ones_like(ids, bool), **state})
    state.update({name.replace("present", "past", 1): tensor for name, tensor in outputs.items() if name != "logits"})
    ids = outputs["logits"][:, -1].argmax(1)[:, None]
    found = np.concatenate([found, ids], 1)
for row in found.tolist():
    print(target.decode(row[: row.index(special["end_id"])] if special["end_id"] in row else row))
