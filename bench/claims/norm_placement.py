"""Post-norm and pre-norm, with warm-up and without (arXiv:2002.04745)."""

from reversal import main

TEXT = "Pre-norm trains without warm-up, post-norm needs it"
DEEP = ["model.encoder.num_layers=4", "model.decoder.num_layers=4"]
VARIANTS = {
    f"{placement}, {words}": [*DEEP, f"model.defaults.placement={placement}", f"schedule.warmup_steps={steps}"]
    for placement in ("post", "pre")
    for words, steps in (("warm-up", 100), ("no warm-up", 1))
}
if __name__ == "__main__":
    main(TEXT, VARIANTS)
