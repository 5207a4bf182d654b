"""The shipped specs, small enough to be verified in a second or two: what to `--set`, by spec."""

from __future__ import annotations

TINY = ["defaults.d_model=24", "defaults.vocab_size=61", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=40",
        "encoder.num_layers=2", "decoder.num_layers=2"]  # fmt: skip
BERT = ["defaults.d_model=24", "tokens.vocab_size=61", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=40",
        "encoder.num_layers=2", "defaults.position.max_len=40"]  # fmt: skip
BASE = [
    "anarcii", "bart-base", "deepnet-18-18", "layer-mix", "marian", "multi-source", "t5-small", "t5-v1.1-small",
    "tiny-additive", "tiny-alibi", "tiny-average", "tiny-batch-norm", "tiny-concat", "tiny-geglu", "tiny-general", "tiny-glu",
    "tiny-no-position", "tiny-normless", "tiny-parallel", "tiny-probabilities",
    "tiny-reglu", "tiny-relative-shaw", "tiny-relu-squared", "tiny-rotary",
    "tiny-sinusoidal-concat", "tiny-tanh", "transformer-base", "transformer-big", "transformer-fast",
    "transformer-learned",
    "transformer-prenorm", "transformer-tiny",
]  # fmt: skip
IMAGE = ["image.size=12", "image.patch=4"]
OWN = {
    "vit-b16": [
        "defaults.d_model=24", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=40", *IMAGE, "encoder.num_layers=2",
        "label.classes=5",
    ],
    "vit-tiny": [
        "defaults.d_model=24", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=40", *IMAGE, "encoder.num_layers=2",
    ],
    "whisper-small": [
        "defaults.d_model=24", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=40", "audio.size=7",
        "frames.convolutions=[{d_model: 16, activation: gelu}, {d_model: 24, stride: 2, activation: gelu}]",
        "target.vocab_size=61", "target.start_id=58", "target.end_id=59", "target.position.max_len=40",
        "encoder.num_layers=2", "decoder.num_layers=2",
    ],
    "clip-b32": [
        "text.vocab_size=61", "text.d_model=24", "text.end_id=60", "text.position.max_len=40", "text_body.num_layers=2",
        "text_body.attention.num_heads=2", "text_body.ffn.d_ff=40", "text_vector.d_model=14", *IMAGE, "image.d_model=32",
        "image_body.num_layers=2", "image_body.attention.num_heads=4", "image_body.ffn.d_ff=36", "image_vector.d_model=14",
    ],
    "albert-base": [
        "defaults.d_model=12", "widen.d_model=24", "tokens.vocab_size=61", "defaults.attention.num_heads=2",
        "defaults.ffn.d_ff=40", "encoder.layers=[{repeat: 3, shared: true}]",
    ],
    "bert-base": BERT,
    "bert-pretraining": BERT,
    "bert-qa": [*BERT, "tokens.end_id=5", "answer.choose=second_text", "answer.tokens=tokens"],
    "bert-pretraining-small": BERT,
    "bert-classifier-small": BERT,
    "roberta": BERT,
    "clip-text": [
        "defaults.d_model=24", "text.vocab_size=61", "text.end_id=60", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=40",
        "text_body.num_layers=2", "text_vector.d_model=16",
    ],
    "gemma2-9b": [
        "defaults.d_model=24", "tokens.vocab_size=61", "defaults.attention.num_heads=4", "defaults.attention.num_kv_heads=2",
        "defaults.attention.head_dim=10", "defaults.ffn.d_ff=40",
        "body.layers=[{repeat: 1, layers: [{self_attention: {window: 5}}, {}]}]",
    ],
    "gpt2": [
        "defaults.d_model=24", "tokens.vocab_size=61", "tokens.end_id=60", "defaults.attention.num_heads=2",
        "defaults.ffn.d_ff=40", "body.num_layers=2",
    ],
    "gpt-char": [
        "defaults.d_model=24", "tokens.vocab_size=61", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=40",
        "body.num_layers=2",
    ],
    "gptj-6b": [
        "defaults.d_model=24", "tokens.vocab_size=61", "logits.vocab_size=61", "defaults.attention.num_heads=2",
        "defaults.position.dims=8", "defaults.ffn.d_ff=40", "body.num_layers=2",
    ],
    "llama3-8b": [
        "defaults.d_model=24", "tokens.vocab_size=61", "tokens.start_id=58", "tokens.end_id=59", "logits.vocab_size=61",
        "defaults.attention.num_heads=4", "defaults.attention.num_kv_heads=2", "defaults.ffn.d_ff=40", "body.num_layers=2",
    ],
    "qwen3-0.6b": [
        "defaults.d_model=24", "tokens.vocab_size=61", "tokens.start_id=58", "tokens.end_id=59",
        "defaults.attention.num_heads=4", "defaults.attention.num_kv_heads=2", "defaults.attention.head_dim=10",
        "defaults.ffn.d_ff=40", "body.num_layers=2",
    ],
    "olmo2-7b": [
        "defaults.d_model=24", "tokens.vocab_size=61", "tokens.pad_id=60", "tokens.end_id=59", "logits.vocab_size=61",
        "defaults.attention.num_heads=4", "defaults.ffn.d_ff=40", "body.num_layers=2",
    ],
    "gpt-oss-20b-dense": [
        "defaults.d_model=24", "tokens.vocab_size=61", "tokens.pad_id=60", "tokens.start_id=58", "tokens.end_id=59",
        "logits.vocab_size=61", "defaults.attention.num_heads=4", "defaults.attention.num_kv_heads=2",
        "defaults.attention.head_dim=10", "defaults.ffn.d_ff=40",
        "body.layers=[{repeat: 1, layers: [{self_attention: {window: 5}}, {}]}]",
    ],
    "modernbert-base": [
        "defaults.d_model=24", "tokens.vocab_size=61", "tokens.pad_id=60", "tokens.start_id=58", "tokens.end_id=59",
        "defaults.attention.num_heads=2", "defaults.ffn.d_ff=40",
        "encoder.layers=[{placement: none, sublayers: [self_attention]}, {sublayers: [ffn]}, "
        "{position: {base: 10000.0}, attention: {window: [3, 3]}}, {}]",
    ],
    "t5gemma-base": [
        "defaults.d_model=24", "defaults.vocab_size=61", "defaults.attention.num_heads=2", "defaults.attention.head_dim=10",
        "defaults.ffn.d_ff=40", "encoder.layers=[{self_attention: {window: [4, 4]}}, {}]",
        "decoder.layers=[{self_attention: {window: 5}}, {}]",
    ],
    "sentence-classifier": [
        "defaults.d_model=24", "tokens.vocab_size=61", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=40",
        "encoder.num_layers=2",
    ],
}  # fmt: skip
RNN = ["defaults.d_model=12", "defaults.vocab_size=61", "encoder.d_state=8", "decoder.d_state=8"]
RECURRENT = {
    "rnn-encoder-decoder": [*RNN, "decoder.readout.d_model=5", "narrow.d_model=7"],
    "rnn-encoder-decoder-small": [*RNN, "decoder.readout.d_model=12"],
    "rnnsearch": [*RNN, "decoder.readout.d_model=5", "decoder.cross_attention.score.d_score=6"],
    "rnnsearch-small": [*RNN, "decoder.readout.d_model=12"],
    "luong": [*RNN, "decoder.readout.d_model=9"],
    "conditional-gru": [*RNN, "decoder.readout.d_model=9", "decoder.cross_attention.score.d_score=6"],
    "conditional-gru-small": [*RNN, "decoder.readout.d_model=12"],
    "g2p-en": ["defaults.d_model=12", "encoder.d_state=8", "decoder.d_state=8"],
    "rnn-language-model": ["defaults.d_model=12", "defaults.vocab_size=61", "body.d_state=8"],
    "rnn-relu": ["defaults.d_model=12", "defaults.vocab_size=61", "body.d_state=8"],
}
MORE = {
    "marian": ["defaults.pad_id=60", "target.start_id=60"],
    "t5-small": ["defaults.attention.head_dim=12", "defaults.position.max_distance=20", "defaults.position.buckets=8"],
    "t5-v1.1-small": ["defaults.attention.head_dim=12", "defaults.position.max_distance=20", "defaults.position.buckets=8"],
    "tiny-rotary": ["defaults.attention.num_heads=4"],
    "multi-source": ["other.num_layers=2", "decoder.sublayers=[self_attention, {kind: cross_attention, name: to_source}, "
                     "{kind: cross_attention, name: to_second, memory: other, num_heads: 3}, ffn]"],
}  # fmt: skip
OVERRIDES = {**OWN, **RECURRENT, **{name: [*TINY, *MORE.get(name, [])] for name in BASE}}
