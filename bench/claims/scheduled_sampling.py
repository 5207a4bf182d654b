"""Teacher forcing, and scheduled sampling: chrF of translations that the model decodes on its own (arXiv:1506.03099)."""

from reversal import Pair, main

TEXT = "Scheduled sampling gives better decoded text than teacher forcing"
METRIC = ["validation.metric=chrf", "validation.sentences=100"]
VARIANTS = {
    "teacher forcing": METRIC,
    "scheduled sampling": [*METRIC, "teacher_forcing={kind: linear, end: 0.5, steps: 300}"],
}
SETTINGS = {"pairs": [Pair("scheduled sampling", "teacher forcing", "teacher_forcing")]}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
