"""ViT, Whisper and CLIP are those of Hugging Face transformers, number by number."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from . import name_maps
from .comparison import all_in_float64, compare, copy_weights, shake

VIT = (
    "defaults.d_model=24",
    "defaults.attention.num_heads=3",
    "defaults.ffn.d_ff=40",
    "image.size=12",
    "image.patch=4",
    "image.channels=2",
    "encoder.num_layers=2",
    "label.classes=5",
)
WHISPER = (
    "defaults.d_model=24",
    "defaults.attention.num_heads=3",
    "defaults.ffn.d_ff=40",
    "audio.size=7",
    "frames.convolutions.0.d_model=24",
    "frames.convolutions.1.d_model=24",
    "target.vocab_size=61",
    "target.start_id=58",
    "target.end_id=59",
    "target.position.max_len=19",
    "encoder.num_layers=2",
    "decoder.num_layers=2",
)
CLIP = (
    "text.vocab_size=61",
    "text.d_model=24",
    "text.end_id=60",
    "text.position.max_len=19",
    "text_body.num_layers=2",
    "text_body.attention.num_heads=3",
    "text_body.ffn.d_ff=40",
    "text_vector.d_model=14",
    "image.size=12",
    "image.patch=4",
    "image.d_model=32",
    "image_body.num_layers=2",
    "image_body.attention.num_heads=4",
    "image_body.ffn.d_ff=36",
    "image_vector.d_model=14",
)
ALL = torch.ones(3, 10, dtype=torch.bool)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def built(model: type, config: Any) -> Any:
    with all_in_float64():
        peer = model(config).eval()
        shake(peer)
    return peer


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    images = {"image_size": 12, "patch_size": 4, "num_channels": 2, "num_labels": 5}
    return built(ViTForImageClassification, ViTConfig(**sizes, **images, attn_implementation="eager"))


@pytest.mark.parametrize("wrong", [(), ("defaults.norm.eps=1e-6",), ("first.take=mean",), ("defaults.position=sinusoidal_2d",)])
def test_vit(shrunk, wrong):
    theirs, ours, images = vit(), shrunk("vit-b16", *VIT, wrong=wrong), drawn(3, 2, 12, 12)

    def check() -> None:
        compare(ours, theirs, name_maps.VIT, lambda: ours(image=images), lambda: {"label": theirs(images).logits}, ALL)

    with pytest.raises(AssertionError) if wrong else nullcontext():
        check()


def test_vit_at_another_resolution(shrunk):
    """Learned positions are interpolated as Hugging Face does, to more patches and to fewer."""
    theirs, ours = vit(), shrunk("vit-b16", *VIT, wrong=("image.any_size=true",))
    copy_weights(ours, theirs, name_maps.VIT)
    for height, width in ((20, 16), (8, 12)):
        images = drawn(2, 2, height, width)
        with all_in_float64(), torch.no_grad():
            expected = theirs(images, interpolate_pos_encoding=True).logits
        torch.testing.assert_close(ours(image=images).label.detach(), expected, rtol=0, atol=1e-12)


def whisper() -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sides = ("encoder", "decoder")
    sizes = {
        f"{side}_{name}": size for side in sides for name, size in (("layers", 2), ("attention_heads", 3), ("ffn_dim", 40))
    }
    special = {"pad_token_id": 60, "bos_token_id": 58, "eos_token_id": 59, "decoder_start_token_id": 58}
    config = WhisperConfig(
        d_model=24, vocab_size=61, num_mel_bins=7, max_source_positions=13, max_target_positions=19,
        attn_implementation="eager", suppress_tokens=None, begin_suppress_tokens=None, **sizes, **special,
    )  # fmt: skip
    peer = built(WhisperForConditionalGeneration, config)
    peer.model.decoder.embed_tokens.padding_idx = None  # so that the pad token learns, as ours does
    return peer


@pytest.mark.parametrize(
    "wrong",
    [(), ("frames.position.last_frequency=exclusive",), ("frames.convolutions.1.activation=relu",)],
)
def test_whisper(shrunk, wrong):
    theirs, ours = whisper(), shrunk("whisper-small", *WHISPER, wrong=wrong)
    audio, ids = drawn(3, 26, 7), torch.randint(0, 58, (3, 10), generator=torch.Generator().manual_seed(1))

    def run() -> dict[str, Tensor]:
        return {"logits": theirs(input_features=audio.mT, decoder_input_ids=ids).logits}

    def check() -> None:
        compare(
            ours, theirs, name_maps.shipped("WhisperForConditionalGeneration"), lambda: ours(audio=audio, target=ids), run, ALL
        )

    with pytest.raises(AssertionError, match="where rounding explains") if wrong else nullcontext():
        check()


def test_clip(shrunk, padded):
    from transformers import CLIPConfig, CLIPModel

    text = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "vocab_size": 61}
    special = {"bos_token_id": 59, "eos_token_id": 60, "pad_token_id": 60, "max_position_embeddings": 19}
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 36}
    images = {"image_size": 12, "patch_size": 4}
    config = CLIPConfig(
        text_config={**text, **special, "projection_dim": 14},
        vision_config={**vision, **images, "projection_dim": 14},
        projection_dim=14,
        attn_implementation="eager",
    )
    theirs = built(CLIPModel, config)
    with torch.no_grad():
        theirs.logit_scale.fill_(1.7)
    ours = shrunk("clip-b32", *CLIP)
    ids, real = padded((17, 9, 4), 61, pad=60, end=60)
    pixels = drawn(3, 3, 12, 12)

    def run() -> dict[str, Tensor]:
        said = theirs(input_ids=ids, pixel_values=pixels)
        return {"match": said.logits_per_text}

    compare(ours, theirs, name_maps.shipped("CLIPModel"), lambda: {"match": ours(text=ids, image=pixels).match}, run, real)
