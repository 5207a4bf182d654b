"""Good inputs of every kind, made once, and the commands that read them: the parameters of each command say what it reads."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import distribution
from itertools import product
from pathlib import Path

import click
import numpy as np
import torch
from PIL import Image

import encoder_tasks
from image_files import bars, write_idx, write_recipe
from kinds_task import recipe_for
from reported import FAILED, FINDING, report, right, wrong
from tfkit import Catalogue, build, load_catalogue, load_recipe, load_spec, save
from tfkit.cli.dispatch import commands
from tfkit.cli.options import InputPath, OutputPath
from tfkit.inspection import certificate_of, certificate_text, product_machine
from tfkit.interop.huggingface import write
from tfkit.train import train
from translation_task import write_task

ROOT = Path(__file__).parents[2]
BY_NAME = {
    "recipe": ("small-recipe.yaml",), "reference": ("train.trg",),
    "model": ("run", "language/run", "classification/run", "tagged/run", "spans/run", "adapted/run", "masked/run"),
    "recipes": ("small-recipe.yaml",),
    "models": ("run",), "base": ("run",), "start": ("run",),
    "resume": ("run",), "weights": ("model",), "auto_table": ("auto.json",),
    "cpu_table": ("cpu.json",),
    "second": ("model", "run"), "subject": ("model",), "replay": ("replay.json",),
    "check_certificate": ("eager.certificate.json",), "translations": ("train.trg",),
    "references": ("train.trg",), "baseline": ("train.trg",),
    "source": ("train.src",), "target": ("train.trg",), "text": ("train.src",), "table": ("text.tsv",),
    "validation_source": ("train.src",), "validation_target": ("train.trg",), "validation_text": ("train.src",),
    "validation_table": ("text.tsv",), "images": ("images/images.idx", "images/bar.png"),
    "questions": ("spans/train.jsonl",), "validation_questions": ("spans/train.jsonl",),
    "labels": ("images/labels.idx",), "validation_images": ("images/images.idx",), "validation_labels": ("images/labels.idx",),
    "directory": ("huggingface",), "image": ("images/bar.png",), "features": ("audio/frames.npy",),
    "hypothesis": ("links",), "gold": ("links",), "place": ("kernel.cubin",), "files": ("train.src",),
    "imported": ("vmap.txt",), "corpus": ("sentences",),
    "texts": ("few.src",), "targets": ("few.trg",), "prefixes": ("one.trg",),
}  # fmt: skip
"""Good values of a parameter, by its name; others get a spec. The first one with which a command succeeds is damaged."""
TRAIN = ["-o", "new", "--set", "stopping.max_steps=1", "--set", "keeping.last=1"]
NAMED = ["small-recipe.yaml", *TRAIN, "--set", "data.held_out=null"]
OF_IMAGES = ["images/recipe.yaml", *TRAIN, "--set", "data.held_out=null"]
GIVEN = ["--images", "images/images.idx", "--labels", "images/labels.idx"]
BESIDE = {
    ("train", "images"): ["images/recipe.yaml", "--labels", "images/labels.idx", *TRAIN],
    ("train", "labels"): ["images/recipe.yaml", "--images", "images/images.idx", *TRAIN],
    ("train", "validation_images"): [*OF_IMAGES, *GIVEN, "--validation-labels", "images/labels.idx"],
    ("train", "validation_labels"): [*OF_IMAGES, *GIVEN, "--validation-images", "images/images.idx"],
    ("classify", "images"): ["images/run"],
    ("train", "recipe"): TRAIN,
    ("train", "start"): ["small-recipe.yaml", *TRAIN],
    ("train", "source"): ["small-recipe.yaml", "--target", "train.trg", *TRAIN],
    ("train", "target"): ["small-recipe.yaml", "--source", "train.src", *TRAIN],
    ("train", "validation_source"): ["--validation-target", "train.trg", *NAMED],
    ("train", "validation_target"): ["--validation-source", "train.src", *NAMED],
    ("train", "text"): ["language/model.yaml", *TRAIN],
    ("train", "validation_text"): ["language/model.yaml", "--text", "train.src", *TRAIN],
    ("train", "table"): ["classification/model.yaml", *TRAIN],
    ("train", "validation_table"): ["classification/model.yaml", "--table", "text.tsv", *TRAIN],
    ("train", "questions"): ["spans/r.yaml", *TRAIN],
    ("train", "validation_questions"): ["spans/r.yaml", *TRAIN],
    ("train", "auto_table"): ["small-recipe.yaml", *TRAIN],
    ("serve", "cpu_table"): ["run", "--dry-run"],
    ("plan", "cpu_table"): ["small.yaml", "--inference"],
    ("bench", "spec"): ["cpu", "--rounds", "1", "--threads", "1"],
    ("compare", "recipes"): ["--seeds", "1", "--directory", "new", "--set", "stopping.max_steps=1"],
    ("claims", "corpus"): ["quality_ko_en", "--tiny", "--seeds", "1"],
    ("average", "models"): ["-o", "new"],
    ("merge", "model"): ["-o", "new"],
    ("merge", "base"): ["adapted/run", "-o", "new"],
    ("score", "references"): ["train.trg", "train.trg"],
    ("score", "baseline"): ["train.trg", "train.trg"],
    ("rescore", "model"): ["train.src", "train.trg"],
    ("rescore", "files"): ["run", "train.trg"],
    ("shortlist", "model"): ["train.src", "train.trg", "--force"],
    ("shortlist", "files"): ["run", "train.trg", "--force"],
    ("shortlist", "imported"): ["run", "--force"],
    ("fill", "model"): ["--text", "<mask>"],
    ("fill", "auto_table"): ["masked/run", "--text", "<mask>"],
    ("look", "model"): ["--text", "dog", "--beams", "1", "-o", "new"],
    ("look", "second"): ["run", "--text", "dog", "--beams", "1", "-o", "new"],
    ("look", "image"): ["images/run", "-o", "new"],
    ("look", "features"): ["audio", "--tokens", "2", "--beams", "1", "-o", "new"],
    ("look", "texts"): ["run", "--beams", "1", "-o", "new"],
    ("look", "targets"): ["run", "--text", "dog", "--text", "cat", "-o", "new"],
    ("look", "auto_table"): ["run", "--text", "dog", "--beams", "1", "-o", "new"],
    ("build", "spec"): ["-o", "new"],
    ("export", "model"): ["--to", "ctranslate2", "-o", "new"],
    ("import", "directory"): ["-o", "new", "--without-tokeniser"],
    ("serve", "models"): ["--dry-run"],
    ("serve", "auto_table"): ["run", "--dry-run"],
    ("bench", "auto_table"): ["attention", "--list"],
    ("plan", "spec"): ["--gpus", "2", "--memory", "80GB"],
    ("positions", "spec"): ["-o", "new.svg"],
    ("positions", "before"): ["small.yaml", "-o", "new.svg"],
    ("verify", "weights"): ["small.yaml"],
}  # fmt: skip
"""What else a command needs, by command and argument."""

WRITING = {
    "average": ["run"],
    "bench": ["attention", "--list"],
    "build": ["small.yaml"],
    "claims": ["token_order", "--tiny", "--seeds", "1"],
    "claims directory": ["embedding_scale", "--tiny", "--seeds", "1"],
    "compare": ["small-recipe.yaml", "--seeds", "1", "--set", "stopping.max_steps=1"],
    "conformance": ["none-of-these"],
    "conformance json_file": ["eager", "--replay", "no-case.json"],
    "diff": ["small.yaml", "small.yaml", "--html"],
    "eject": ["small.yaml"],
    "export": ["run", "--to", "ctranslate2"],
    "import": ["huggingface", "--without-tokeniser"],
    "look": ["run", "--text", "dog", "--beams", "1"],
    "merge": ["adapted/run"],
    "new": ["norm", "acme.part"],
    "positions": ["small.yaml"],
    "schema": [],
    "shortlist": ["run", "train.src", "train.trg", "--force"],
    "show": ["small.yaml", "--html"],
    "train": ["small-recipe.yaml", "--set", "stopping.max_steps=1"],
    "verify": ["small.yaml", "--backend", "none-of-these"],
}
"""What else a command needs that writes, by command, or by command and argument."""


@dataclass(frozen=True)
class Reads:
    """An argument by which a command reads a file or a directory, and good values of it."""

    command: str
    name: str
    option: str
    good: tuple[str, ...]

    def words(self, value: str, beside: Sequence[str]) -> list[str]:
        """The command line with this value, and what else is needed."""
        if self.option:
            return [self.command, f"{self.option}={value}", *beside]
        place = [each.name for each in positional(self.command)].index(self.name)
        return [self.command, *beside[:place], value, *beside[place:]]

    def besides(self) -> Iterator[list[str]]:
        """What else the command needs: what is written above, or good values for its other positional arguments."""
        if (self.command, self.name) in BESIDE:
            yield BESIDE[self.command, self.name]
            return
        others = [good_values(each) for each in positional(self.command) if each.name != self.name and each.required]
        yield from map(list, product(*others))


@dataclass(frozen=True)
class Writes:
    """An argument that names where a command writes."""

    command: str
    name: str
    option: str

    def words(self, value: str) -> list[str]:
        return [self.command, f"{self.option}={value}", *WRITING.get(f"{self.command} {self.name}", WRITING[self.command])]


def all_commands() -> list[str]:
    """Every command, those of plugins too."""
    return commands.list_commands(click.Context(commands))


def parameters(command: str) -> list[click.Parameter]:
    found = commands.get_command(click.Context(commands), command)
    assert found is not None
    return found.params


def positional(command: str) -> list[click.Parameter]:
    return [each for each in parameters(command) if isinstance(each, click.Argument)]


def good_values(parameter: click.Parameter) -> tuple[str, ...]:
    return BY_NAME.get(parameter.name, ("small.yaml",))


def option_of(parameter: click.Parameter) -> str:
    """The long name of an option; empty for a positional argument."""
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else ""


def read_arguments() -> Iterator[Reads]:
    """Every argument of every command that names what is read."""
    for command in all_commands():
        for each in parameters(command):
            if isinstance(each.type, InputPath):
                yield Reads(command, each.name, option_of(each), good_values(each))


def written_arguments() -> Iterator[Writes]:
    """Every argument of every command that names what is written."""
    for command in all_commands():
        for each in parameters(command):
            if isinstance(each.type, OutputPath):
                yield Writes(command, each.name, option_of(each))


def looks_like_path(parameter: click.Parameter) -> bool:
    """Whether the help of an argument names a file or a directory."""
    words = re.findall("[A-Z]+", parameter.metavar or parameter.name.upper())
    return bool({"FILE", "DIR", "SPEC", "RECIPE", "MODEL", "REFERENCE"} & set(words))


def make_good(folder: Path) -> None:
    """A spec, recipes, text, a saved model, a run of each kind, a table of `auto`, a report to replay."""
    recipe = write_task(folder)
    for kind in ("language", "classification"):
        (folder / kind).mkdir()
        metric = "accuracy" if kind == "classification" else "loss"
        steps = ["stopping.max_steps=4", "validation.every_steps=2"]
        train(load_recipe(recipe_for(folder / kind, kind, metric), steps), folder / kind / "run")
    shutil.copy(folder / "classification" / "text.tsv", folder / "text.tsv")
    for kind in ("tagged", "spans"):
        (folder / kind).mkdir()
        train(load_recipe(encoder_tasks.recipe_for(folder / kind, kind), ["stopping.max_steps=2"]), folder / kind / "run")
    (folder / "masked").mkdir()
    train(load_recipe(recipe_for(folder / "masked", "masked"), ["stopping.max_steps=2"]), folder / "masked" / "run")
    (folder / "images").mkdir()
    write_idx(folder / "images", packed=False)
    images, labels = (folder / "images" / f"{name}.idx" for name in ("images", "labels"))
    files = [f"data.images={images}", f"data.labels={labels}", "stopping.max_steps=2", "validation.every_steps=2"]
    train(load_recipe(write_recipe(folder / "images"), files), folder / "images" / "run")
    Image.fromarray(bars(1)[0][0]).save(folder / "images" / "bar.png")
    train(load_recipe(recipe, ["stopping.max_steps=4", "validation.every_steps=2", "keeping.every_steps=2"]), folder / "run")
    (folder / "adapted").mkdir()
    adapters = ["lora={rank: 2}", f"pretrained={folder / 'run'}", "stopping.max_steps=2", "validation.every_steps=2"]
    train(load_recipe(recipe, adapters), folder / "adapted" / "run")
    for side in ("src", "trg"):
        (folder / f"few.{side}").write_text("".join((folder / f"train.{side}").read_text().splitlines(keepends=True)[:2]))
    (folder / "sentences").mkdir()
    for name, count in {"train": 202, "test": 2}.items():
        for language in ("ko", "en"):
            rows = "".join(f"{'a b ' * (1 + 9 * (at % 2))}\n" for at in range(count))
            (folder / "sentences" / f"{name}.{language}.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))
    (folder / "links").write_text("0-0 1-1\n\n2-1\n")
    (folder / "vmap.txt").write_text("<unk>\ta\n")
    (folder / "one.trg").write_text("la\n")  # as many lines as standard input has
    catalogue = load_catalogue()
    save(build(load_spec(folder / "small.yaml", catalogue), catalogue), folder / "model", catalogue=catalogue)
    gpt2 = ["expect=null", "defaults.d_model=8", "defaults.attention.num_heads=2", "body.num_layers=1", "tokens.vocab_size=9"]
    gpt2 += ["tokens.end_id=8", "defaults.position.max_len=7"]
    (folder / "huggingface").mkdir()
    write(build(load_spec(ROOT / "specs" / "gpt2.yaml", catalogue, gpt2), catalogue), {}, folder / "huggingface")
    _make_audio(folder, catalogue)
    table = next((ROOT / "tfkit" / "builtin" / "attention").glob("*.json"))
    shutil.copy(table, folder / "auto.json")
    row = {"outputs": 8, "inputs": 8, "rows": [1, 4], "fastest": "mkl", "unpacked": "mkl"}
    rows = [{**row, "threads": threads} for threads in (1, 2, 4, 8, torch.get_num_threads())]
    (folder / "cpu.json").write_text(json.dumps({"tfkit_products": 1, **product_machine(), "rows": rows}))
    _make_cubin(folder)
    (folder / "replay.json").write_text(json.dumps(wrong(name="eager")))
    without = report(FAILED, findings=(replace(FINDING, case={}),), name="eager")  # its replay starts no process
    (folder / "no-case.json").write_text(json.dumps(without))
    (folder / "eager.certificate.json").write_text(certificate_text(certificate_of(right(name="eager"), catalogue)))


def _make_cubin(folder: Path) -> None:
    """The machine code of an empty kernel, by the ptxas of Triton's wheel."""
    ptxas = Path(str(distribution("triton").locate_file("triton/backends/nvidia/bin/ptxas")))
    (folder / "kernel.ptx").write_text(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n")
    subprocess.run([ptxas, "-arch=sm_90", folder / "kernel.ptx", "-o", folder / "kernel.cubin"], check=True)


def _make_audio(folder: Path, catalogue: Catalogue) -> None:
    """A model of frames and text, with a tokeniser, and frames."""
    small = ["expect=null", "defaults.d_model=8", "defaults.attention.num_heads=2", "defaults.ffn.d_ff=8", "audio.size=5"]
    small += ["target.vocab_size=99", "target.start_id=1", "target.end_id=2", "encoder.num_layers=1", "decoder.num_layers=1"]
    small += ["frames.convolutions=[{d_model: 8, stride: 2, activation: gelu}]"]
    tokeniser = next((folder / "language" / "run").glob("models/*/tokeniser.json")).read_text()
    model = build(load_spec(ROOT / "specs" / "whisper-small.yaml", catalogue, small), catalogue)
    save(model, folder / "audio", catalogue=catalogue, texts={"tokeniser.json": tokeniser})
    np.save(folder / "audio" / "frames.npy", np.ones((4, 5), np.float32))
