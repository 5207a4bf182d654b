"""Training on images: it learns, it resumes bit for bit, and its model classifies files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tfkit
from image_files import bars, write_folder, write_idx, write_recipe
from tfkit import InputError, load_recipe
from tfkit.cli import main
from tfkit.data import Corpus
from tfkit.data.image_tasks import image_task
from tfkit.data.roles import Roles
from tfkit.plugin.model_parts import ImageRule
from tfkit.train import resume, train

pytestmark = pytest.mark.xdist_group("images")  # its module fixture is built once


def recipe_in(folder: Path, *overrides: str) -> tfkit.Recipe:
    images, labels = write_idx(folder)
    return load_recipe(write_recipe(folder), [f"data.images={images}", f"data.labels={labels}", *overrides])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    outcome = train(recipe_in(folder), folder / "run")
    assert outcome.progress.best > 90  # accuracy; one class for all images is right for about half
    return folder / "run"


def weights(run: Path) -> dict[str, torch.Tensor]:
    return tfkit.load(run).state_dict()


@pytest.mark.slow
def test_a_run_that_was_interrupted_ends_in_the_same_bits(run: Path, tmp_path: Path) -> None:
    train(recipe_in(tmp_path, "stopping.max_steps=40"), tmp_path / "run")
    resume(tmp_path / "run", overrides=["stopping.max_steps=80"])
    whole, parts = weights(run / "models" / "step-80"), weights(tmp_path / "run" / "models" / "step-80")
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_augmentation_depends_on_seed_epoch_and_image_alone(run: Path) -> None:
    recipe, rule = load_recipe(run / "recipe.yaml"), ImageRule(8, 1, 4, False)
    task, corpus = image_task(recipe, Roles(None, "image", "label"), rule), Corpus(run / "data" / "train.arrow")
    draw = np.random.default_rng(0)

    def images(numbers: list[int], epoch: int, seed: int = 0) -> torch.Tensor:
        other = image_task(recipe.model_copy(update={"seed": seed}), task.roles, rule)
        return other.batch(corpus, numbers, draw, epoch).inputs["image"]

    first = images([3, 5, 7], 2)
    assert torch.equal(images([7, 3], 2), first[[2, 0]])
    assert torch.equal(images([5], 2), first[[1]])
    assert not torch.equal(images([3], 3), first[[0]])
    assert not torch.equal(images([3], 2, seed=1), first[[0]])
    plain = images([3], 0)
    row = torch.from_numpy(corpus.rows("target", [3])[0].copy()).view(1, 1, 8, 8)
    assert torch.equal(plain, (row / 255 - 0.5) / 0.5)
    assert not torch.equal(plain, first[[0]])


def test_a_compiled_step_pads_the_batch_with_copies_that_do_not_count(run: Path) -> None:
    from tfkit.data import NO_LABEL, BatchShapes

    recipe, rule = load_recipe(run / "recipe.yaml"), ImageRule(8, 1, 4, False)
    task, corpus = image_task(recipe, Roles(None, "image", "label"), rule), Corpus(run / "data" / "train.arrow")
    shapes = BatchShapes(corpus.lengths, 16)
    numbers = [1, 2, 3]
    batch = shapes.padded(task.batch(corpus, numbers, np.random.default_rng(0)), numbers, task)
    assert batch.inputs["image"].shape == (16, 1, 8, 8)
    assert batch.labels[3:].tolist() == [NO_LABEL] * 13


def test_the_model_classifies_files(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels, classes = bars(20, seed=5)
    files = []
    for number, image in enumerate(pixels):
        files.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(image).save(files[-1])
    assert main(["classify", str(run), *files]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[2] for row in rows] == files
    assert [int(row[0]) for row in rows] == classes.tolist()
    assert all(0.5 <= float(row[1]) <= 1 for row in rows)
    assert main(["classify", str(run), files[0], "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row.keys() == {"file", "label", "probability", "probabilities"}
    assert row["probabilities"].keys() == {"0", "1"}
    assert sum(row["probabilities"].values()) == pytest.approx(1)
    made = next(tfkit.ImageClassifier.load(run).classify(files[:1]))
    assert made.probabilities == row["probabilities"]
    with pytest.raises(InputError, match="a list of files is expected, and this is one str of"):
        next(tfkit.ImageClassifier.load(run).classify(files[0]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: Image.new("L", (9, 8)).save(path), "8 x 9 pixels, the model takes 8 x 8"),
        (lambda path: Image.new("RGB", (8, 8)).save(path), "8-bit RGB"),
        (lambda path: path.write_bytes(b"x"), "neither a PNG nor a JPEG"),
        (lambda path: None, "No such file"),
    ],
)
def test_a_wrong_file_is_named_after_those_before_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make, words: str
) -> None:
    Image.fromarray(bars(1)[0][0]).save(tmp_path / "good.png")
    make(tmp_path / "bad.png")
    assert main(["classify", str(run), str(tmp_path / "good.png"), str(tmp_path / "bad.png")]) == 2
    out, err = capsys.readouterr()
    assert out.endswith("good.png\n")
    assert words in err
    assert "bad.png" in err


def test_images_are_for_models_of_images(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", str(run)]) == 2
    assert "tfkit classify MODEL IMAGE..." in capsys.readouterr().err


def test_models_of_a_run_are_averaged_with_their_normalisation(run: Path, tmp_path: Path) -> None:
    assert main(["average", str(run), "-o", str(tmp_path / "mean")]) == 0
    assert tfkit.ImageClassifier.load(tmp_path / "mean").normalisation.mean == (0.5,)


@pytest.mark.parametrize(
    ("override", "code", "words"),
    [
        ("batching.tokens=100", "TFK108", "`tokens` is a setting of text"),
        ("tokeniser.vocab_size=100", "TFK108", "no tokens"),
        ("validation.metric=bleu", "TFK112", "cannot be computed for data of kind `images`"),
        ("pretrained=somewhere", "TFK117", "cannot be trained from another model"),
        ("data.mean=[]", "TFK021", "empty"),
        ("data.std=[0.0]", "TFK021", "more than"),
        ("data.rotation=200", "TFK021", "at most"),
        ("batching.images=0", "TFK021", "at least 1"),
    ],
)
def test_settings_that_do_not_fit_images_are_errors(tmp_path: Path, override: str, code: str, words: str) -> None:
    with pytest.raises(tfkit.TfkitError) as error:
        train(recipe_in(tmp_path, override), tmp_path / "run")
    assert error.value.diagnostics[0].code == code
    assert words in str(error.value)


def test_a_model_of_text_is_refused(tmp_path: Path) -> None:
    images, labels = write_idx(tmp_path)
    recipe = write_recipe(tmp_path)
    (tmp_path / "bars.yaml").write_text((Path(__file__).parents[2] / "specs" / "sentence-classifier.yaml").read_text())
    with pytest.raises(tfkit.InputError, match="need one input of images"):
        train(load_recipe(recipe, [f"data.images={images}", f"data.labels={labels}"]), tmp_path / "run")


def test_a_spec_alone_is_no_recipe_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recipe(tmp_path)
    folder = write_folder(tmp_path / "png", 10)
    assert main(["train", str(tmp_path / "bars.yaml"), "--images", str(folder), "-o", str(tmp_path / "run")]) == 2
    assert "images need a RECIPE" in capsys.readouterr().err
