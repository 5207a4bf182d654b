"""`tfkit look`: attention weights and probabilities of one run, as a page or a picture."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from ..errors import Diagnostic, StoreError
from .options import READ, WRITE, common, placement, whole
from .output import check_place, print_json, print_text, speak_utf8
from .packages import TEXT, need_packages
from .usage import usage_error

EPILOG = """\b
tfkit look run --text "the old dog sees the cat" -o page.html
tfkit look rnn transformer --text "..." --target "..." -o both.html
tfkit look run --text "..." --site "decoder.*.cross_attention" -o heads.png
tfkit look vit --image digit.png -o page.html
tfkit look clip --image cat.png --text "a cat" -o page.html
tfkit look whisper --features log-mel.npy -o page.html

\b
Without --target, a translation or a continuation is searched. A pair of texts
has a tab between them. The page is one file that loads nothing; .png and .svg
need matplotlib: pip install 'tfkit[pictures]'.
"""


@click.command("look", epilog=EPILOG)
@click.argument("model", type=READ, help="A directory that `tfkit train` or `tfkit import` wrote.")
@click.argument("second", type=READ, required=False, help="Another one, for a page with both side by side.")
@click.option("--text", metavar="TEXT", help="What the model reads.")
@click.option("--target", metavar="TEXT", help="The translation or continuation; searched unless given.")
@click.option("--image", type=READ, metavar="FILE", help="A PNG or JPEG file, for a model of images.")
@click.option("--features", type=READ, metavar="FILE", help="A .npy file of frames, for a model of audio.")
@click.option("--site", "sites", metavar="PATTERN", multiple=True, help="Attention sites; all by default. May be repeated.")
@click.option("--beams", type=whole, metavar="N", default=5, help="Beams of the search; 1 is greedy.")
@click.option("--tokens", type=whole, metavar="N", default=20, help="New tokens of a continuation at most.")
@click.option("--max-tokens", type=whole, metavar="N", default=256, help="Longest text, in tokens; the rest is cut off.")
@click.option("-o", "--output", type=WRITE, metavar="FILE", required=True, help="The page (.html) or picture (.png, .svg).")
@click.option("--force", is_flag=True, help="Replace the file.")
@placement
@common
def command(
    model: str, second: str | None, text: str | None, target: str | None, image: str | None, features: str | None,
    sites: tuple[str, ...], beams: int, tokens: int, max_tokens: int, output: str, force: bool, device: str,
    backend: list[str] | None, auto_table: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Show what a model attends to: heat maps, lines, probabilities, beams.

    The model runs once on a text or an image. All weights in the page are those of this run, with 8 bits.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    if text is None and image is None and features is None:
        raise usage_error("nothing is given to look at", 'write --text "...", --image FILE or --features FILE')
    from ..look import attention
    from ..look.forms import PICTURES, check_matplotlib, check_suffix
    from .device import placed

    place = Path(output)
    check_suffix(place)
    check_place(output)
    if os.path.lexists(output) and not force:
        raise StoreError(Diagnostic("TFK080", f"{output} exists already", "write --force, or name another file"))
    if place.suffix in PICTURES:
        check_matplotlib()
    figure = attention(
        *([model] if second is None else [model, second]), text=text, target=target, image=image, features=features,
        sites=sites, beams=beams, tokens=tokens, max_tokens=max_tokens, **placed(device, backend, auto_table),
    )  # fmt: skip
    figure.save(place)
    for notice in dict.fromkeys(notice for each in figure.observations for notice in each.notices):
        print(notice, file=sys.stderr)
    rows: list[dict[str, Any]] = [
        {"model": each.model, "output": each.output, "sites": [site.name for site in each.sites], "notices": list(each.notices)}
        for each in figure.observations
    ]
    if as_json:
        print_json({"file": output, "runs": rows})
        return 0
    for each in rows:
        count = len(each["sites"])
        print_text(f"{each['model']}: {count} attention {'site' if count == 1 else 'sites'}")
        if each["output"]:
            print_text(f"output: {each['output']}")
    print_text(f"{output}: {place.stat().st_size:,} bytes")
    return 0
