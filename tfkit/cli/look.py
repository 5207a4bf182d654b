"""`tfkit look`: attention weights and probabilities of one run, as a page or a picture."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from ..errors import Diagnostic, StoreError
from ..view.terminal import shown
from .options import READ, WRITE, common, loading, whole
from .output import check_place, print_json, print_text, speak_utf8
from .packages import TEXT, import_torch, need_packages
from .usage import usage_error

EPILOG = """\b
tfkit look run --text "the old dog sees the cat" -o page.html
tfkit look rnn transformer --text "..." --target "..." -o both.html
tfkit look run --text "the dog sees" --text "the cat sleeps" -o page.html
tfkit look run --texts test.en --targets test.de -o page.html
tfkit look run --text "..." --site "decoder.0.*" --lines -o lines.svg
tfkit look run --text "..." --site "decoder.*.cross_attention" -o heads.png
tfkit look vit --image digit.png -o page.html
tfkit look clip --image cat.png --text "a cat" -o page.html
tfkit look whisper --features log-mel.npy -o page.html

\b
Without --target, a translation or a continuation is searched. A pair of texts
has a tab between them. A page shows one of several texts at a time; a picture
draws them below each other. The page is one file that loads nothing; .png and
.svg need matplotlib: pip install 'tfkit-core[pictures]'.
"""


@click.command("look", epilog=EPILOG)
@click.argument("model", type=READ, help="A directory that `tfkit train` or `tfkit import` wrote.")
@click.argument("second", type=READ, required=False, help="Another one, for a page with both side by side.")
@click.option("--text", metavar="TEXT", multiple=True, help="What the model reads. May be repeated, 32 times at most.")
@click.option("--target", metavar="TEXT", multiple=True, help="The translation or continuation; searched unless given.")
@click.option("--texts", type=READ, metavar="FILE", help="A text on each line, instead of --text; 32 lines at most.")
@click.option("--targets", type=READ, metavar="FILE", help="The target of each text, line by line, instead of --target.")
@click.option("--image", type=READ, metavar="FILE", help="A PNG or JPEG file, for a model of images.")
@click.option("--features", type=READ, metavar="FILE", help="A .npy file of frames, for a model of audio.")
@click.option("--site", "sites", metavar="PATTERN", multiple=True, help="Attention sites; all by default. May be repeated.")
@click.option("--beams", type=whole, metavar="N", default=5, help="Beams of the search; 1 is greedy.")
@click.option("--tokens", type=whole, metavar="N", default=20, help="New tokens of a continuation at most.")
@click.option("--max-tokens", type=whole, metavar="N", default=256, help="Longest text, in tokens; the rest is cut off.")
@click.option("--lines", is_flag=True, help="Lines from words to words instead of heat maps; a page opens with them.")
@click.option("-o", "--output", type=WRITE, metavar="FILE", required=True, help="The page (.html) or picture (.png, .svg).")
@click.option("--force", is_flag=True, help="Replace the file.")
@loading
@common
def command(
    model: str, second: str | None, text: tuple[str, ...], target: tuple[str, ...], texts: str | None, targets: str | None,
    image: str | None, features: str | None, sites: tuple[str, ...], beams: int, tokens: int, max_tokens: int, lines: bool,
    output: str, force: bool, device: str, backend: list[str] | None, auto_table: str | None, allow_nan: bool, as_json: bool,
) -> int:  # fmt: skip
    """Show what a model attends to: heat maps, lines, probabilities, beams.

    The model runs once on each text or image. All weights in the page are those of these runs, with 8 bits.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    if not text and texts is None and image is None and features is None:
        raise usage_error("nothing is given to look at", 'write --text "...", --texts FILE, --image FILE or --features FILE')
    for option, words, file in (("text", text, texts), ("target", target, targets)):
        if words and file is not None:
            raise usage_error(f"--{option} and --{option}s are given", "write all in the file, or all on the command line")
    import_torch()
    from ..look import attention
    from ..look.forms import PICTURES, check_matplotlib, check_suffix
    from ..look.request import texts_in
    from .device import loaded

    place = Path(output)
    check_suffix(output)
    check_place(output)
    if os.path.lexists(output) and not force:
        raise StoreError(Diagnostic("TFK080", f"{output} exists already", "write --force, or name another file"))
    if place.suffix in PICTURES:
        check_matplotlib()
    read = list(text) if texts is None else texts_in(texts)
    written = list(target) if targets is None else texts_in(targets)
    figure = attention(
        *([model] if second is None else [model, second]), text=read or None, target=written or None, image=image,
        features=features, sites=sites, beams=beams, tokens=tokens, max_tokens=max_tokens,
        **loaded(device, backend, auto_table, allow_nan),
    )  # fmt: skip
    saved = figure.save(place, lines)
    for notice in dict.fromkeys([*(notice for observation in figure.observations for notice in observation.notices), *saved]):
        print(shown(notice), file=sys.stderr)
    rows: list[dict[str, Any]] = [
        {
            "model": observation.model,
            "text": observation.text,
            "output": observation.output,
            "sites": [site.name for site in observation.sites],
            "notices": list(observation.notices),
        }
        for observation in figure.observations
    ]
    if as_json:
        print_json({"file": output, "runs": rows})
        return 0
    for number, row in enumerate(rows):
        count = len(row["sites"])
        text_number = f"text {number * figure.texts // len(rows) + 1}, " if figure.texts > 1 else ""
        print_text(shown(f"{text_number}{row['model']}: {count} attention {'site' if count == 1 else 'sites'}"))
        if row["output"]:
            print_text(shown(f"output: {row['output']}"))
    print_text(shown(f"{output}: {place.stat().st_size:,} bytes"))
    return 0
