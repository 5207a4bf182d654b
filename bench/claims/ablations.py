"""A Transformer without one of its parts: feed-forward layers, norms, the scale of scores, positions, several heads."""

from reversal import Pair, main

TEXT = "A Transformer needs each of its parts"
ATTENTION_ONLY = [
    "model.defaults.ffn=null",
    "model.encoder={layers: [{repeat: 2, sublayers: [self_attention]}]}",
    "model.decoder={layers: [{repeat: 2, sublayers: [self_attention, cross_attention]}]}",
]
VARIANTS = {
    "whole": [],
    "no feed-forward layer": ATTENTION_ONLY,
    "no norm": ["model.defaults.norm=none"],
    "no scale of scores": ["model.defaults.attention.scale=1.0"],
    "no positions": ["model.defaults.position=none"],
    "one head": ["model.defaults.attention.num_heads=1"],
    "eight heads": ["model.defaults.attention.num_heads=8"],
}
SETTING = dict(zip(list(VARIANTS)[1:], ("sublayers", "norm", "scale", "position", "num_heads", "num_heads"), strict=True))
SETTINGS = {"pairs": [Pair("whole", name, setting) for name, setting in SETTING.items()]}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
