"""`tfkit shortlist`: the target ids that may translate a source, learnt or imported, beside the weights of a model."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..view.terminal import shown
from .options import READ, WRITE, common, whole
from .output import check_places, print_json, print_text
from .packages import TEXT, import_torch, need_packages
from .usage import usage_error

EPILOG = """\b
tfkit shortlist runs/en-de train.en train.de
tfkit translate runs/en-de --shortlist < in.en > out.de

\b
A vocabulary map of CTranslate2 has a line for each token or n-gram of the
source: its tokens, a tab, and target tokens, with spaces between tokens.
"""


@click.command("shortlist", epilog=EPILOG)
@click.argument("model", type=READ, help="A directory that `tfkit train` wrote, or a model in it.")
@click.argument("files", nargs=-1, type=READ, metavar="[SOURCE TARGET]", help="Parallel text, as that of training.")
@click.option("--per-token", type=whole, metavar="N", default=100, help="Target tokens of each source token.")
@click.option("--frequent", type=whole, metavar="N", default=100, help="Target tokens of every source: the most frequent ones.")
@click.option("--iterations", type=whole, metavar="N", default=5, help="Of expectation maximisation; each reads the text.")
@click.option("--import", "imported", type=READ, metavar="FILE", help="Read a vocabulary map of CTranslate2 instead.")
@click.option("--export", "exported", type=WRITE, metavar="FILE", help="Write the shortlist as a vocabulary map (vmap.txt).")
@click.option("--force", is_flag=True, help="Replace the shortlist that the model has already.")
@common
def command(
    model: str, files: tuple[str, ...], per_token: int, frequent: int, iterations: int, imported: str | None,
    exported: str | None, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Learn which target tokens may translate each source token, so that `translate --shortlist` computes only their logits.

    Two files are read line by line: line n of the second translates line n of the first. The likeliest translations by IBM
    model 1 are saved beside the weights (shortlist.safetensors). With --export alone, the shortlist of the model is written as
    a vocabulary map.
    """
    need_packages("train", *TEXT)
    if files and imported:
        raise usage_error("--import and files of text exclude each other", "write one of them")
    if files and len(files) != 2:
        raise usage_error(f"two files are read, a source and its translation, not {len(files)}", "name both")
    if not files and not imported and not exported:
        raise usage_error("there is nothing to learn from", "name two files of parallel text, or --import FILE")
    check_places([exported], [*files, imported])
    import_torch()
    from ..builder import build
    from ..catalogue import load_catalogue
    from ..data import read_tokenisers, roles_for
    from ..files import write_whole
    from ..io import model_in
    from ..io.layout import SPEC
    from ..io.saved_files import read_versions, saved_spec
    from ..text.shortlist import MAX_TOKENS, SHORTLIST, Shortlist

    place = model_in(Path(model))
    read_versions(place)  # there is a model
    catalogue = load_catalogue()
    roles_for(build(saved_spec(place / SPEC, catalogue), catalogue, device="meta").plan, "parallel")
    path, tokenisers = place / SHORTLIST, read_tokenisers(place, ("source", "target"))
    if (files or imported) and path.exists() and not force:
        raise usage_error(f"{path} exists", "--force replaces it")
    if files:
        source, target = files
        shortlist = Shortlist.learn(tokenisers, source, target, per_token=per_token, frequent=frequent, iterations=iterations)
    else:
        shortlist = Shortlist.read_map(tokenisers, imported) if imported else Shortlist.load(path, tokenisers)
    if shortlist.left_out:
        print(f"pairs with more than {MAX_TOKENS:,} tokens on a side, left out: {shortlist.left_out:,}", file=sys.stderr)
    if files or imported:
        shortlist.save(path)
    if exported:
        write_whole(exported, "".join(f"{line}\n" for line in shortlist.map_lines()))
    counts = sum(map(len, shortlist.rows.values()))
    facts = {"file": str(exported if exported and not (files or imported) else path), "rows": len(shortlist.rows),
             "targets": counts, "always": len(shortlist.always), "left_out": shortlist.left_out}  # fmt: skip
    if as_json:
        print_json(facts)
    else:
        mean = counts / max(len(shortlist.rows), 1)
        text = (
            f"{len(shortlist.rows):,} source tokens with {mean:.1f} target tokens on average, {len(shortlist.always)} for all"
        )
        print_text(shown(f"{facts['file']}: {text}"))
    return 0
