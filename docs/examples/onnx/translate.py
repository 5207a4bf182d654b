"""Translate lines with the files of `tfkit export MODEL --to onnx -o DIR`: python translate.py DIR < lines"""

import json
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

info = json.loads(Path(sys.argv[1], "program.json").read_text())
source, target = (Tokenizer.from_file(f"{sys.argv[1]}/{info['tokenisers'][name]}") for name in ("source", "target"))
encode, step = (InferenceSession(f"{sys.argv[1]}/{name}.onnx") for name in ("encode", "step"))
end, past = info["ids"]["target"]["end_id"], [each for each in info["programs"][1]["inputs"] if "past." in each["name"]]

rows = [[*source.encode(line.strip()).ids, end] for line in sys.stdin]
longest, sizes = max(map(len, rows)), {"batch": len(rows), "past": 0}
padded = np.array([row + [info["ids"]["source"]["pad_id"]] * (longest - len(row)) for row in rows])
state = {each["name"]: np.zeros([sizes.get(size, size) for size in each["shape"]], each["dtype"]) for each in past}
state |= zip((each.name for each in encode.get_outputs()), encode.run(None, {"source": padded}), strict=True)
state["visible"], ids = np.full((len(rows), 1), True), np.full((len(rows), 1), info["ids"]["target"]["start_id"])
limit = min(longest + 50, info["max_lengths"].get("target", longest + 50))
while ids.shape[1] <= limit and not (ids[:, 1:] == end).any(1).all():
    state["ids"] = ids[:, -1:]
    found = step.run(None, {each.name: state[each.name] for each in step.get_inputs()})
    named = {each.name: array for each, array in zip(step.get_outputs(), found, strict=True)}
    state |= {name.replace("present", "past", 1): array for name, array in named.items()}
    ids = np.concatenate([ids, named["logits"][:, -1:].argmax(2)], 1)
for row in ids[:, 1:].tolist():
    print(target.decode(row[: [*row, end].index(end)]))
