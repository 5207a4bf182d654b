"""Position schemes on text longer than any in training: letters to write backwards, trained on 2 to 12 of them."""

from statistics import fmean

from reversal import LETTERS, Pair, Result, main, scores, written

from tfkit.comparison.results import paired_difference

TEXT = "Relative schemes (ALiBi, rotary, T5) and sinusoids go beyond the trained length, learned positions do not"
SCHEMES = {
    "sinusoidal": "sinusoidal",
    "learned": "{kind: learned, max_len: 64}",
    "alibi": "alibi",
    "rotary": "rotary_half",
    "t5": "relative_t5",
}
VARIANTS = {name: [f"model.defaults.position={scheme}"] for name, scheme in SCHEMES.items()}
PAIRS = [Pair(name, "learned", "position", "goes further than") for name in SCHEMES if name != "learned"]
TRAINED, BEYOND = [range(2, 8), range(8, 13)], [range(13, 17), range(17, 25)]


def verdict(result: Result) -> str:
    """Letters right beyond the trained lengths, each scheme against learned positions, paired by seed."""
    seeds = range(len(result["seeds"]))

    def right(name: str, buckets: list[range]) -> dict[int, float]:
        found = [result["accuracy_by_length"][name][f"{min(lengths)}-{max(lengths)}"] for lengths in buckets]
        return {seed: fmean(values[seed] for values in found) for seed in seeds}

    sentences = []
    for pair in PAIRS:
        difference = paired_difference(right(pair.better, BEYOND), right(pair.other, BEYOND))
        word = {1: "the data agree", -1: "the data say the opposite"}.get(difference.sign, "not seen")
        sentences.append(f"{pair.better} {pair.says} {pair.other}: {word}, {written(difference)}.")
    shares = ", ".join(
        f"{name} {fmean(right(name, BEYOND).values()):.0f} of {fmean(right(name, TRAINED).values()):.0f}" for name in SCHEMES
    )
    same = paired_difference(scores(result, "sinusoidal"), scores(result, "learned"))
    return (
        f"Per cent of letters right at 13 to 24 letters: {' '.join(sentences)} Beyond the trained length, of what it is at"
        f" trained lengths: {shares}; a guess is {100 / len(LETTERS):.0f}. At trained lengths sinusoidal against learned differ"
        f" in validation loss by {written(same)}."
    )


SETTINGS = {"buckets": [*TRAINED, *BEYOND], "pairs": PAIRS, "verdict": verdict}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
