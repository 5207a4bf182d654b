"""Position schemes on text longer than any in training: letters to write backwards, trained on 2 to 12 of them."""

from reversal import main

TEXT = "Relative schemes (ALiBi, rotary, T5) and sinusoids go beyond the trained length, learned positions do not"
SCHEMES = {
    "sinusoidal": "sinusoidal",
    "learned": "{kind: learned, max_len: 64}",
    "alibi": "alibi",
    "rotary": "rotary_half",
    "t5": "relative_t5",
}
VARIANTS = {name: [f"model.defaults.position={scheme}"] for name, scheme in SCHEMES.items()}
SETTINGS = {"buckets": [range(2, 8), range(8, 13), range(13, 17), range(17, 25)]}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
