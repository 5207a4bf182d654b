"""Translating a whole test set, greedily and by beam search: tfkit, Hugging Face `generate` and CTranslate2 with the same
weights, in the same batches, in one run, each in a process of its own; and the bare matrix products at the same numbers of
rows, without which there is no decoding.

Without a model, weights are random and every sentence continues to the longest reference of its batch, in all three alike: the
end token is then left out. With one (`--model DIR`, as `tfkit.save` writes it) sentences end where the model ends them.
"""

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import translate_peers as peers
from apart import timed_apart
from interleaved import report
from torch import Tensor

import tfkit
from tfkit.cpu.packed_weight import PackedWeight, SearchProducts, searching
from tfkit.cpu.small_batch import small_batch_linear
from tfkit.doctor.installation import machine_here
from tfkit.generate import recorded_steps
from tfkit.generate.batched import batches_by_length, map_in_threads
from tfkit.nn.model import Model

SPECS = Path(__file__).parent.parent / "specs"
LENGTHS = (9, 12, 7, 15, 11, 10, 13, 8, 22, 12, 11, 17, 9, 14, 10, 12)
"""Source lengths of captions, where no file is given."""
MOST = 512

Candidate = Callable[[], list[list[int]]]


def read(path: Path, vocabulary: int, written: bool) -> list[list[int]]:
    """The ids of every line: those written there, or one per word, and the end token."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        if written:
            return [[int(word) for word in line.split()] for line in lines]
        return [[4 + zlib.crc32(word.encode()) % (vocabulary - 4) for word in line.split()] + [2] for line in lines]


def built(options: argparse.Namespace) -> Model:
    if options.model:
        return tfkit.load(options.model).eval()
    sizes = {
        "encoder.num_layers": options.layers, "decoder.num_layers": options.layers, "defaults.d_model": options.width,
        "defaults.ffn.d_ff": options.width and 4 * options.width, "defaults.vocab_size": options.vocab,
    }  # fmt: skip
    overrides = [f"{name}={size}" for name, size in sizes.items() if size]
    spec = SPECS / f"transformer-{options.shape}.yaml"
    ends = ["target.start_id=1", "expect=null", *(["target.end_id=null"] if options.shape == "tiny" else [])]
    return tfkit.build(tfkit.load_spec(spec, tfkit.load_catalogue(), [*overrides, *ends]), seed=0).eval()


def batches(options: argparse.Namespace, model: Model) -> list[tuple[list[int], Tensor, int]]:
    """The sentences of each batch, their ids (B, L), and how many tokens each may have."""
    vocabulary = model.plan.inputs["source"].vocab_size
    if options.source:
        sources = read(options.source, vocabulary, options.ids)
        targets = read(options.target, vocabulary, options.ids) if options.target else sources
    else:
        sources = targets = [[3 + (7 * number + at) % (vocabulary - 3) for at in range(L)] for number, L in enumerate(LENGTHS)]
    if options.sentences:
        every = max(1, len(sources) // options.sentences)
        sources, targets = sources[::every][: options.sentences], targets[::every][: options.sentences]
    search = tfkit.Search(length_factor=1.2, extra_length=10)
    found = []
    lengths = list(map(len, sources))
    if options.batch_rows:
        order = sorted(range(len(sources)), key=lengths.__getitem__)
        divided = [order[at : at + options.batch_rows] for at in range(0, len(order), options.batch_rows)]
    else:
        divided = batches_by_length(lengths, options.beams, options.batch_tokens)
    for rows in divided:
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(sources[row]) for row in rows], batch_first=True)
        limit = search.limit(ids.shape[1]) if options.model else max(len(targets[row]) for row in rows)
        found.append((rows, ids, limit))
    return found


def ours(options: argparse.Namespace, model: Model, todo: Any, recorded: bool = True) -> Candidate:
    penalty = tfkit.PowerLengthPenalty(options.alpha)

    def search(batch: Any) -> list[list[int]]:
        with searching(products):
            return found(batch)

    def found(batch: Any) -> list[list[int]]:
        _, ids, limit = batch
        if options.beams == 1:
            greedy = tfkit.greedy(model, source=ids, max_new_tokens=limit, graphs=graphs)
            return [row[:n] for row, n in zip(greedy.ids.tolist(), greedy.lengths.tolist(), strict=True)]
        said = {"beams": options.beams, "length_penalty": penalty, "max_new_tokens": limit}
        return [best[0].ids.tolist() for best in tfkit.beam_search(model, source=ids, graphs=graphs, **said)]

    products, graphs = SearchProducts(), recorded_steps(model) if recorded else None  # as a `Translator` has them

    def run() -> list[list[int]]:
        nonlocal products
        products = SearchProducts(model.float32_kernels)  # all batches are one search, as in `tfkit.generate_batched`
        return [row for rows in map_in_threads(search, todo, options.workers) for row in rows]

    return run


def hugging_face(options: argparse.Namespace, model: Model, todo: Any) -> Candidate:
    from transformers import GenerationConfig

    peer, end = peers.marian(model, MOST), model.plan.inputs["target"].end_id

    def run() -> list[list[int]]:
        made: list[list[int]] = []
        for _, ids, limit in todo:
            beams = {"length_penalty": options.alpha, "early_stopping": "never"} if options.beams > 1 else {}
            peer.generation_config = GenerationConfig(
                max_new_tokens=limit, do_sample=False, num_beams=options.beams, pad_token_id=0, eos_token_id=end,
                decoder_start_token_id=model.plan.inputs["target"].start_id, bos_token_id=None, **beams,
            )  # fmt: skip
            for row in peer.generate(input_ids=ids, attention_mask=ids != 0)[:, 1:].tolist():
                made.append(row[: row.index(end) + 1] if end is not None and end in row else row)
        return made

    return run


def ours_measured(options: argparse.Namespace, model: Model, todo: Any) -> Candidate:
    tfkit.use_cpu_table(options.cpu_table)
    return ours(options, model, todo)


def ours_bfloat16(options: argparse.Namespace, model: Model, todo: Any) -> Candidate:
    return ours_rounded(options, model, todo, "bfloat16")


def ours_int8(options: argparse.Namespace, model: Model, todo: Any) -> Candidate:
    return ours_rounded(options, model, todo, "int8")


def ours_rounded(options: argparse.Namespace, model: Model, todo: Any, precision: str) -> Candidate:
    with tempfile.TemporaryDirectory() as directory:
        place = tfkit.save(model, Path(directory) / "model")
        return ours(options, tfkit.load(place, precision=precision).eval(), todo)


def ctranslate2_int8(options: argparse.Namespace, model: Model, todo: Any) -> Candidate:
    return ctranslate2(options, model, todo, "int8")


def ctranslate2(options: argparse.Namespace, model: Model, todo: Any, precision: str = "float32") -> Candidate:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "model"
        peer = peers.ctranslate2(model, place, MOST, torch.get_num_threads(), options.workers, precision)
    ends = model.plan.inputs["target"].end_id is not None
    words = [[[peers.token(one) for one in row if one] for row in ids.tolist()] for _, ids, _ in todo]
    numbers = {peers.token(number): number for number in range(model.plan.inputs["target"].vocab_size)}

    def run() -> list[list[int]]:
        found = [
            peer.translate_batch(
                sources, beam_size=options.beams, length_penalty=options.alpha, max_decoding_length=limit,
                min_decoding_length=1 if ends else limit, return_end_token=True, asynchronous=True,
            )
            for (_, _, limit), sources in zip(todo, words, strict=True)
        ]  # fmt: skip
        return [[numbers[word] for word in one.result().hypotheses[0]] for batch in found for one in batch]

    return run


def rows_of(run: Candidate) -> list[tuple[int, int]]:
    """The rows and positions of every step of a search, the first of each batch as a start."""
    seen: list[tuple[int, int]] = []
    step = Model.step

    def watched(self: Model, state: Any, ids: Tensor, *rest: Any) -> Any:
        seen.append((ids.shape[0], state.length))
        return step(self, state, ids, *rest)

    Model.step = watched  # type: ignore[method-assign]
    try:
        run()
    finally:
        Model.step = step  # type: ignore[method-assign]
    return seen


def bare_products(options: argparse.Namespace, model: Model, todo: Any) -> Callable[[], Any]:
    """Only the linear maps, at the rows that tfkit's own search had in every step, by the fastest product that torch has."""
    shape, seen = peers.shape_of(model), rows_of(ours(options, model, todo, recorded=False))
    M, inner = shape["width"], shape["inner"]
    square, up, down = torch.randn(M, M), torch.randn(inner, M), torch.randn(M, inner)
    encoder = [[square.clone() for _ in range(4)] + [up.clone(), down.clone()] for _ in range(shape["encoder_layers"])]
    decoder = [[square.clone() for _ in range(6)] + [up.clone(), down.clone()] for _ in range(shape["decoder_layers"])]
    crossed = [square.clone() for _ in range(2 * shape["decoder_layers"])]
    table = torch.randn(shape["vocabulary"], M)
    most = max([rows for rows, _ in seen] + [ids.numel() for _, ids, _ in todo])
    thin, wide = torch.randn(1, most, M), torch.randn(1, most, inner)

    copies: defaultdict[int, PackedWeight] = defaultdict(PackedWeight)

    def through(layers: list[list[Tensor]], rows: int, search: SearchProducts) -> None:
        for weights in layers:
            for weight in weights:
                x = wide[:, :rows] if weight.shape[1] == inner else thin[:, :rows]
                small_batch_linear(x, weight, None, copies[id(weight)], search)

    @torch.no_grad()
    def products() -> None:
        search = SearchProducts()
        for _, ids, _ in todo:
            through(encoder, ids.numel(), search)
            through([crossed], ids.numel(), search)
        for rows, _ in seen:
            through(decoder, rows, search)
            small_batch_linear(thin[:, :rows], table, None, copies[id(table)], search)

    return products


CANDIDATES = {
    "tfkit": ours,
    "tfkit, measured products": ours_measured,
    "Hugging Face generate": hugging_face,
    "CTranslate2 float32": ctranslate2,
    "bare matrix products": bare_products,
    "tfkit bfloat16": ours_bfloat16,
    "tfkit int8": ours_int8,
    "CTranslate2 int8": ctranslate2_int8,
}


def candidate(name: str, options: argparse.Namespace) -> Callable[[], Any]:
    if options.threads:
        torch.set_num_threads(options.threads)
    model = built(options)
    return CANDIDATES[name](options, model, batches(options, model))


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=["tiny", "base"], default="tiny")
    parser.add_argument("--model", type=Path, help="a directory written by tfkit.save, instead of a shape")
    parser.add_argument("--source", type=Path, help="a file with a sentence per line, .gz or not")
    parser.add_argument("--target", type=Path, help="its translations, which say how long to go on where weights are random")
    parser.add_argument("--ids", action="store_true", help="the files hold ids, end token included, not words")
    parser.add_argument("--beams", type=int, default=5, help="1 decodes greedily")
    parser.add_argument("--alpha", type=float, default=1.0, help="of the penalty |Y|^alpha")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="padded source tokens times beams")
    parser.add_argument("--batch-rows", type=int, help="sentences of a batch, instead")
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--workers", type=int, default=1, help="batches at once with their share of the threads; Hugging Face has no such way"
    )
    parser.add_argument("--cpu-time", action="store_true", help="count processor time: for one thread on a busy machine")
    parser.add_argument("--int8", action="store_true", help="also tfkit and CTranslate2 in int8")
    parser.add_argument("--bfloat16", action="store_true", help="also tfkit in bfloat16")
    parser.add_argument("--cpu-table", type=Path, help="also tfkit with this table of products (tfkit bench cpu --json FILE)")
    parser.add_argument("--sentences", type=int, help="only so many, evenly over the file")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parsed(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)  # for the report
    model = built(options)
    todo = batches(options, model)
    sentences = sum(len(rows) for rows, _, _ in todo)
    clock = "processor time" if options.cpu_time else "wall"
    named = [name for name in CANDIDATES if options.int8 or not name.endswith("int8")]
    if not options.bfloat16:
        named.remove("tfkit bfloat16")
    if options.cpu_table is None:
        named.remove("tfkit, measured products")
    seconds, made = timed_apart({name: (candidate, (name, options)) for name in named}, options.rounds, clock)
    alike = {
        name: sum(mine == its for mine, its in zip(made["tfkit"], made[name], strict=True)) / sentences
        for name in named if name != "bare matrix products"
    }  # fmt: skip
    way = "greedily" if options.beams == 1 else f"with {options.beams} beams, alpha {options.alpha}"
    title = f"{model.plan.name}: {sentences} sentences {way}, {len(todo)} batches"
    if limit := os.environ.get("ATEN_CPU_CAPABILITY"):
        title += f", kernels limited to {limit.upper()}"
    result = report(
        title, seconds, "Hugging Face generate", options.json, sentences=sentences, batches=len(todo),
        tokens=sum(len(row) for row in made["tfkit"]), workers=options.workers,
        clock=clock, share_of_equal_outputs=alike, versions=versions_of_rivals(), **processor(),
    )  # fmt: skip
    for name, share in alike.items():
        rate = sentences / result["median_seconds"][name]
        print(f"{name}: {rate:.1f} sentences/s, {share:.1%} of the outputs are tfkit's")
    ratio = result["median_seconds"]["CTranslate2 float32"] / result["median_seconds"]["tfkit"]
    print(f"tfkit / CTranslate2 float32: {ratio:.2f}")
    if options.bfloat16:
        seconds_of = result["median_seconds"]
        print(f"tfkit bfloat16 / tfkit: {seconds_of['tfkit'] / seconds_of['tfkit bfloat16']:.2f}")
    if options.int8:
        mine, its = (result["median_seconds"][name] for name in ("tfkit int8", "CTranslate2 int8"))
        print(f"tfkit int8 / tfkit: {result['median_seconds']['tfkit'] / mine:.2f}, / CTranslate2 int8: {its / mine:.2f}")
    return result


def processor() -> dict[str, Any]:
    return {name: machine_here()[name] for name in ("processor", "instructions")}


def versions_of_rivals() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("transformers", "ctranslate2")}


if __name__ == "__main__":
    main()
