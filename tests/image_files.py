"""Small data sets of images: bars that stand or lie, as idx files and as folders of PNG files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

SIDE = 8
SPEC = """
tfkit: 1
name: bars
defaults: {d_model: 16, position: sinusoidal_2d, placement: pre, norm: layer_norm, attention: {num_heads: 2},
           ffn: {d_ff: 32, activation: gelu}, dropout: 0.1}
nodes:
  image: {kind: patches, size: 8, patch: 4, channels: 1}
  body:  {kind: stack, input: image, num_layers: 1}
  mean:  {kind: pool, input: body, take: mean}
  label: {kind: classify, input: mean, classes: 10}
outputs: [label]
"""
RECIPE = """
tfkit: 1
name: bars
model: bars.yaml
data: {kind: images, shift: 1, rotation: 5, held_out: 20}
batching: {images: 16}
schedule: {kind: constant, peak: 1.0e-2, warmup_steps: 10}
stopping: {max_steps: 80}
validation: {metric: accuracy, every_steps: 40}
keeping: {every_steps: 40, best: 2}
"""


def bars(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 8, 8) uint8 with a bright bar, and whether it lies (1) or stands (0)."""
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 60, (count, SIDE, SIDE)).astype(np.uint8)
    labels = draw.integers(0, 2, count)
    for image, label, at in zip(images, labels, draw.integers(1, 6, count), strict=True):
        if label:
            image[at : at + 2] = 250
        else:
            image[:, at : at + 2] = 250
    return images, labels


def idx(values: np.ndarray) -> bytes:
    """The bytes of an idx file."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def write_idx(folder: Path, count: int = 100, packed: bool = True, prefix: str = "") -> tuple[Path, Path]:
    """Two idx files of bars."""
    images, labels = bars(count)
    paths = []
    for name, values in (("images", images), ("labels", labels)):
        path = folder / f"{prefix}{name}.idx{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(idx(values), mtime=0) if packed else idx(values))
        paths.append(path)
    return paths[0], paths[1]


def write_folder(folder: Path, count: int = 100, names: tuple[str, str] = ("standing", "lying")) -> Path:
    """A folder with a sub-folder of PNG files for each label."""
    from PIL import Image

    images, labels = bars(count)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / names[label]
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path / f"{number:03}.png")
    return folder


def write_recipe(folder: Path, *lines: str) -> Path:
    """A recipe and its spec; `lines` are added to the recipe."""
    (folder / "bars.yaml").write_text(SPEC)
    path = folder / "recipe.yaml"
    path.write_text(RECIPE + "\n".join(lines))
    return path
