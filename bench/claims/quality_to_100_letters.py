"""Translators on texts of up to 100 letters to write backwards: recurrent without attention, with it, and a Transformer."""

from quality_by_length import PAIRS, PAPERS, SPECS, VARIANTS as SHORT, verdict
from reversal import main

TEXT = "One context vector forgets text of up to 100 letters, attention does not"
LONGER = ["batching.tokens=1024", "stopping.max_steps=800", "validation.every_steps=200"]
RECIPES = {**{name: SHORT[name] for name in ("rnn", "rnn with attention", "transformer")}, **PAPERS}
VARIANTS = {name: [*changes, *LONGER] for name, changes in RECIPES.items()}
BUCKETS = [range(2, 21), *(range(low, low + 20) for low in (21, 41, 61, 81))]
SETTINGS = {"lengths": range(2, 101), "specs": SPECS, "buckets": BUCKETS, "pairs": PAIRS[:1], "verdict": verdict}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
