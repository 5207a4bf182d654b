"""Post-norm and pre-norm, with warm-up and without: a constant learning rate, 250 steps (arXiv:2002.04745)."""

from reversal import main

TEXT = "Pre-norm trains without warm-up, post-norm needs it"
DEEP = ["model.encoder.num_layers=4", "model.decoder.num_layers=4", "stopping.max_steps=250", "validation.every_steps=125"]
VARIANTS = {
    f"{placement}, {words}": [
        *DEEP, f"model.defaults.placement={placement}", f"schedule={{kind: constant, peak: 3.0e-3, warmup_steps: {steps}}}",
    ]
    for placement in ("post", "pre")
    for words, steps in (("warm-up", 100), ("no warm-up", 1))
}  # fmt: skip
if __name__ == "__main__":
    main(TEXT, VARIANTS)
