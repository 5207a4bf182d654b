"""Post-norm and pre-norm with a warm-up, without it at the same rate, and without it at a lower one (arXiv:2002.04745)."""

from reversal import ByLength, main

from tfkit.comparison import Comparison
from tfkit.comparison.results import paired_difference

TEXT = "Pre-norm trains without warm-up, post-norm needs it"
PEAK, LOWER, WARM_UP = 3e-3, 1e-3, 100
DEEP = ["model.encoder.num_layers=4", "model.decoder.num_layers=4"]
RATES = {"warm-up": (PEAK, WARM_UP), "no warm-up": (PEAK, 1), "no warm-up, lower rate": (LOWER, 1)}
VARIANTS = {
    f"{placement}, {words}": [
        *DEEP,
        f"model.defaults.placement={placement}",
        f"schedule={{kind: constant, peak: {peak}, warmup_steps: {steps}}}",
    ]
    for placement in ("post", "pre")
    for words, (peak, steps) in RATES.items()
}


def verdict(found: Comparison, by_length: ByLength) -> str:
    """Each placement without warm-up against the same placement with it, at the same rate and at the lower one."""
    scores = {each.name: each.scores for each in found.candidates}
    sentences = []
    for placement, claim in (("post", "needs"), ("pre", "needs no")):
        warm, cold, lower = (scores[f"{placement}, {words}"] for words in RATES)
        same, slow = paired_difference(cold, warm), paired_difference(lower, warm)
        worse = same.sign > 0
        said = "the data agree" if worse == (placement == "post") else "not seen"
        shown = f"{same.mean:+.3g} (95 % interval {same.low:+.3g} to {same.high:+.3g})"
        sentences.append(f"{placement.capitalize()}-norm {claim} warm-up: {said}; without it, the loss differs by {shown}.")
        what = "is worse than" if slow.sign > 0 else "is better than" if slow.sign < 0 else "is not seen to differ from"
        shown = f"{slow.mean:+.3g} ({slow.low:+.3g} to {slow.high:+.3g})"
        sentences.append(f"A third of the rate without warm-up {what} the full rate with it: {shown}.")
    return " ".join(sentences)


SETTINGS = {"verdict": verdict}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
