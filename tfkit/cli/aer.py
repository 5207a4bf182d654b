"""`tfkit aer`: the error rate of word alignments."""

from __future__ import annotations

import click

from ..errors import Diagnostic, InputError
from .options import READ, common
from .output import print_json, print_text

EPILOG = """\b
tfkit translate MODEL --alignment < in.en | cut -f 2 > out.links
tfkit aer out.links gold.links

\b
A line of GOLD has sure links, 0-2, and possible ones, 0?2 or 0p2.
"""


@click.command("aer", epilog=EPILOG)
@click.argument("hypothesis", type=READ, help="Links of source and target words, 0-0 1-2, a sentence pair per line.")
@click.argument("gold", type=READ, help="The gold alignment of the same sentence pairs.")
@click.option("--one-based", is_flag=True, help="The words of GOLD count from 1, as in many published files.")
@common
def command(hypothesis: str, gold: str, one_based: bool, as_json: bool) -> int:
    """Score word alignments: alignment error rate, precision and recall, in per cent (Och and Ney 2003).

    Both files are plain text (or .gz) in the Pharaoh format. Words count from 0; the corpus is scored as a whole.
    """
    from ..data.pharaoh import read_gold_links, read_links
    from ..metrics import alignment_counts, alignment_scores

    links, golds = read_links(hypothesis, descriptors=True), read_gold_links(gold, first=int(one_based), descriptors=True)
    totals, lines = [0, 0, 0, 0], 0
    while True:
        one, other = next(links, None), next(golds, None)
        if one is None or other is None:
            break
        lines += 1
        totals = [total + count for total, count in zip(totals, alignment_counts(one, *other), strict=True)]
    more = [lines + (first is not None) + sum(1 for _ in rest) for first, rest in ((one, links), (other, golds))]
    if more[0] != more[1]:
        message = f"the files have different numbers of lines: {hypothesis} has {more[0]:,}, {gold} has {more[1]:,}"
        raise InputError(Diagnostic("TFK102", message, "line n of one belongs to line n of the other"))
    scores = alignment_scores(*totals)
    if as_json:
        print_json({name: score.value for name, score in scores.items()})
        return 0
    for name, score in scores.items():
        print_text(f"{'AER' if name == 'aer' else name:<9}  {score.value:6.2f}  {score.verbose}")
    return 0
