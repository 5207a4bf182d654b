"""The translations of an exported model: ids of CTranslate2 and of tfkit over a test set, greedily and with 5 beams.

    python bench/exported.py RUN --source test.en [--target test.de] [--json FILE]

tfkit searches until no hypothesis can overtake the best one. CTranslate2 does so with a large `patience`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import ctranslate2
from ctranslate2 import Translator as Engine

import tfkit
from tfkit.data.tokeniser_directory import read_tokenisers
from tfkit.interop.export import export
from tfkit.io import model_in, other_files

LIMIT = 100
"""New tokens per sentence."""


def ours(place: Path, lines: list[str], beams: int) -> list[list[int]]:
    said: dict[str, Any] = (
        {"kind": "greedy"} if beams == 1 else {"beams": beams, "length_penalty": tfkit.PowerLengthPenalty(1.0)}
    )
    search = tfkit.Search(**said, length_factor=0.0, extra_length=LIMIT)
    translator = tfkit.Translator.load(place, search)
    return [each.hypotheses[0].ids.tolist() if each.hypotheses else [] for each in translator.translate(lines)]


def theirs(engine: Engine, pieces: list[list[str]], beams: int) -> list[list[str]]:
    found = engine.translate_batch(
        pieces, beam_size=beams, patience=20 if beams > 1 else 1, length_penalty=1.0, max_decoding_length=LIMIT,
        min_decoding_length=0, max_batch_size=64, return_end_token=True,
    )  # fmt: skip
    return [each.hypotheses[0] for each in found]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a run or a model with tokenisers")
    parser.add_argument("--source", type=Path, required=True, help="a sentence per line")
    parser.add_argument("--target", type=Path, help="its translations, for BLEU")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--sentences", type=int, help="only the first so many")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    place = model_in(options.model)
    lines = options.source.read_text(encoding="utf-8").splitlines()[: options.sentences]
    references = options.target.read_text(encoding="utf-8").splitlines()[: options.sentences] if options.target else None
    tokenisers = read_tokenisers(place, ("source", "target"))
    source, target = tokenisers["source"], tokenisers["target"]
    pieces = [source.pieces(ids) for ids in source.encode(lines)]
    model = tfkit.load(place)
    numbers = {piece: number for number, piece in enumerate(target.pieces(range(target.size)))}
    result: dict[str, Any] = {"sentences": len(lines), "ctranslate2": ctranslate2.__version__}

    def score(ids: list[list[int]]) -> float | None:
        return tfkit.corpus_scores([target.decode(row) for row in ids], references)["bleu"].value if references else None

    with tempfile.TemporaryDirectory() as folder:
        engines = {}
        for quantization in ("float32", "int8"):
            directory = export(
                model, Path(folder) / quantization, "ctranslate2", texts=other_files(place), quantization=quantization
            )
            engines[quantization] = Engine(str(directory), device="cpu", compute_type=quantization, intra_threads=1)
            result[f"{quantization} MB"] = round((directory / "model.bin").stat().st_size / 1e6, 2)
        for beams in options.beams:
            began = time.process_time()
            mine = ours(place, lines, beams)
            row: dict[str, Any] = {"tfkit": {"cpu seconds": time.process_time() - began, "bleu": score(mine)}}
            for quantization, engine in engines.items():
                began = time.process_time()
                found = [[numbers[token] for token in row] for row in theirs(engine, pieces, beams)]
                equal = sum(a == b for a, b in zip(mine, found, strict=True))
                row[quantization] = {"cpu seconds": time.process_time() - began, "bleu": score(found), "equal": equal}
            result[f"{beams} beams" if beams > 1 else "greedy"] = row
    print(json.dumps(result, indent=1, allow_nan=False))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    return result


if __name__ == "__main__":
    main()
