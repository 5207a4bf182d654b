"""Post-norm and pre-norm with a warm-up, without it at the same rate, and without it at a lower one (arXiv:2002.04745)."""

from statistics import fmean

from reversal import Pair, Result, main, scores, written

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


PAIRS = [
    Pair(f"{placement}, {better}", f"{placement}, {other}", setting)
    for placement in ("post", "pre")
    for better, other, setting in (
        ("warm-up", "no warm-up", "warmup_steps"),
        ("no warm-up, lower rate", "no warm-up", "peak"),
    )
]


def verdict(result: Result) -> str:
    """Each placement without warm-up: against the same placement with it, and against a lower rate."""
    sentences = []
    for placement, claim in (("post", "needs"), ("pre", "needs no")):
        warm, cold, lower = (scores(result, f"{placement}, {words}") for words in RATES)
        without, slower = paired_difference(cold, warm), paired_difference(lower, cold)
        words = {"post": ("not seen", "the data agree"), "pre": ("no difference is seen", "the data say the opposite")}
        sentences.append(
            f"{placement.capitalize()}-norm {claim} warm-up: {words[placement][without.sign > 0]}; without it, the loss"
            f" differs by {written(without)}. Without warm-up, a third of the rate changes the loss by {written(slower)}: to"
            f" {fmean(lower.values()):.2f}, with warm-up and the full rate it is {fmean(warm.values()):.2f}."
        )
    return " ".join(sentences)


SETTINGS = {"pairs": PAIRS, "verdict": verdict}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
