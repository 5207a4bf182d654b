"""Translating text: the order of lines, empty and long ones, n-best, attention; and the same score in training and after it."""

import copy
import json
import re
import shutil
import sys
import types

import pytest
import torch
from torch_ema import ExponentialMovingAverage

from tfkit import InputError, Search, StoreError, TfkitError, Translator, corpus_scores, load, load_recipe, save, score_filter
from tfkit.data import Corpus
from tfkit.data.piece_words import encode_with_words, words_of_ids
from tfkit.data.tokeniser import train_tokeniser
from tfkit.io.alignment_site import AlignmentSite
from tfkit.plugin import Component
from tfkit.recipe.parts import PARTS
from tfkit.text import model_in
from tfkit.text.translator import one_line
from tfkit.train import train
from translation_task import WORDS, sentences, write_task

pytestmark = pytest.mark.xdist_group("translator")  # its module fixture is built once


@pytest.fixture(scope="module")
def translator(trained):
    return Translator.load(trained, Search(kind="greedy"))


def test_it_has_learnt_the_words(translator):
    pairs = sentences(50, seed=99)  # none of them was in the training text
    made = [each.text for each in translator.translate([source for source, _ in pairs])]
    right = sum(text == target for text, (_, target) in zip(made, pairs, strict=True))
    assert right >= 20, made[:5]


def test_the_score_of_training_is_the_score_of_translate(trained):
    """The translator loads the best model from disk and translates the validation text again."""
    entries = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    best = [entry for entry in entries if entry["kind"] == "validation" and entry["best"]][-1]
    corpus = Corpus(trained / "data" / "validation.arrow")
    translator = Translator.load(trained, Search(kind="beam", beams=3))
    made = [each.text for each in translator.translate(corpus.text("source_text", 1000))]
    scores = corpus_scores(made, corpus.text("target_text", 1000))
    assert {name: score.value for name, score in scores.items()} == best["scores"]
    assert {name: score.signature for name, score in scores.items()} == best["signatures"]
    assert best["scores"]["bleu"] > 50


def test_lines_keep_their_order_and_empty_ones_their_place(translator):
    lines = ["the dog sings", "", "cat", "   ", "the old tree sees the new house"]
    together = list(translator.translate(lines))
    assert [each.source for each in together] == lines
    assert [each.text for each in together] == [next(iter(translator.translate([line]))).text for line in lines]
    assert [bool(each.hypotheses) for each in together] == [True, False, True, False, True]
    assert (together[1].text, together[3].text) == ("", "")
    assert [each.text for each in translator.translate(lines, chunk=2)] == [each.text for each in together]


def test_a_translation_is_the_text_of_the_tokeniser(translator, decoded):
    text = " 10\u00a0kg\r\n\ta  b\u3000\u2028c "
    decoded(text)
    (translation,) = translator.translate(["the dog"])
    assert translation.texts == (text,)
    assert one_line(text) == " 10\u00a0kg  \ta  b\u3000\u2028c "


def test_a_long_line_is_cut_off_and_reported(trained):
    whole = Translator.load(trained, Search(kind="greedy"))
    (uncut,) = whole.translate(["the dog sees the cat"])
    count = len(uncut.source_ids)
    (cut,) = Translator.load(trained, Search(kind="greedy"), max_source=count - 1).translate(["the dog sees the cat"])
    assert (uncut.cut, cut.cut) == (0, 1)
    assert cut.source_ids == (*uncut.source_ids[:-2], 2)
    kept = whole.tokenisers["source"].decode(cut.source_ids)
    assert cut.text == next(iter(whole.translate([kept]))).text


@pytest.fixture(scope="module")
def tabled(tmp_path_factory):
    """A run of a model with tables of 6 positions for the source and 5 for the target."""
    folder = tmp_path_factory.mktemp("tabled")
    tables = ["model.source.position={kind: learned, max_len: 6}", "model.target.position={kind: learned, max_len: 5}"]
    limits = ["batching.max_length=5", "stopping.max_steps=2", "data.held_out=1"]
    recipe = write_task(folder)
    for name in ("train.src", "train.trg"):
        (folder / name).write_text("".join(f"{word}\n" for word in ("la", "le", "lo", "li") * 9))
    train(load_recipe(recipe, [*tables, *limits, "model.defaults.position=none"]), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("search", [Search(kind="greedy"), Search(beams=3), Search(kind="sample", seed=1, n_best=2)])
def test_a_source_longer_than_a_table_of_positions_is_cut_and_no_translation_is_longer(tabled, search):
    translator = Translator.load(tabled, search)
    count = len(translator.tokenisers["source"].encode(["la le la le la le la le"])[0])
    assert count > 6
    whole, short = translator.translate(["la le la le la le la le", "la"])
    assert (whole.cut, len(whole.source_ids), whole.source_ids[-1]) == (count + 1 - 6, 6, 2)
    assert short.cut == 0
    assert max(len(each.ids) for each in (*whole.hypotheses, *short.hypotheses)) <= 5
    kept = Translator.load(tabled, search, max_source=4)
    assert len(next(kept.translate(["la le la le la le la le"])).source_ids) == 4


def test_n_best_and_attention(trained):
    search = Search(kind="beam", beams=4, n_best=3)
    translator = Translator.load(trained, search, attention=["decoder.*.cross_attention"])
    (made,) = translator.translate(["the big dog sings"])
    assert len(made.texts) == len(set(made.texts)) == 3
    right = [WORDS[word] for word in made.source.split()]
    assert made.text == made.texts[0]
    assert len(set(right) & set(made.text.split())) >= 3  # of 4: rounding may decide a word; a wrong translation shares one
    scores = [each.score for each in made.hypotheses]
    assert scores == sorted(scores, reverse=True)
    assert [len(each) for each in made.pieces] == [len(each.ids) for each in made.hypotheses]
    weights = made.hypotheses[0].attention["decoder.0.cross_attention"]
    assert weights.shape == (2, len(made.hypotheses[0].ids), len(made.source_ids))
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


def test_translations_begin_with_their_prefixes(translator):
    lines = ["the big dog sings", "the cat", "", "the old tree sees the new house"]
    plain = list(translator.translate(lines))
    first = [each.text.split()[0] if each.text else "" for each in plain]
    again = list(translator.translate(lines, prefixes=first, chunk=3))
    assert [each.text for each in again] == [each.text for each in plain]
    word = next(word for word in WORDS.values() if word not in first)
    begun = list(translator.translate(lines, prefixes=[word, "", word, f"{word} {word}"]))
    assert [each.text.startswith(word) for each in begun] == [True, False, False, True]
    assert begun[3].text.startswith(f"{word} {word}")
    assert begun[1].text == plain[1].text
    assert begun[2].hypotheses == ()


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        (["a"], "there are 1 prefixes, and more lines; give one for each line, which may be empty"),
        (["a", "b", "c"], "there are 2 lines, and more prefixes"),
        (["", "bla " * 60], "the prefix of line 2 has [0-9]+ tokens, and the translation gets at most"),
        (["", "a" * 10_001], "the prefix of line 2 has 10,001 characters; it is a text of at most 10,000 characters"),
        ([3, ""], "the prefix of line 1 has the type int"),
    ],
)
def test_prefixes_that_do_not_fit_are_refused(translator, prefixes, message):
    with pytest.raises(InputError, match=message):
        list(translator.translate(["the dog", "the cat"], prefixes=prefixes))
    for language, written in (("de", "de"), ("<pad>", "<pad>"), ("", ""), ("\udcff", r"\\udcff"), ("a\nb", r"a\\nb")):
        with pytest.raises(InputError, match=f"the model has no token of the language '{written}'; it has no language tokens"):
            list(translator.translate(["the dog"], target_language=language))


def test_a_validation_that_cannot_be_translated_is_refused_before_the_first_step(tmp_path):
    recipe = write_task(tmp_path)
    for number, (change, message) in enumerate((
        ("{metric: bleu, target_language: de}", "TFK077.*no token of the language 'de'"),
        (f"{{metric: bleu, prefix: {'la ' * 60}}}", "TFK078 .*the prefix has [0-9]+ tokens, and the transl"),
        ("{metric: chrf, filters: [{kind: suppress, ids: [5000]}]}", "TFK072.*names the id 5000"),
        ("{metric: loss, prefix: la}", "TFK108.*nothing is translated for the metric `loss`"),
        ("{metric: bleu, filters: [nope]}", "unknown score_filter `nope`"),
    )):  # fmt: skip
        with pytest.raises(TfkitError, match=message):
            train(load_recipe(recipe, [f"validation={change}"]), tmp_path / f"run{number}")
        assert not list((tmp_path / f"run{number}").glob("checkpoints/*"))


def test_the_validation_translates_as_translate_does(tmp_path):
    """With a prefix and a filter, the score of the last validation is that of the translations of the saved model."""
    settings = "{metric: chrf, prefix: la, filters: [{kind: min_tokens, tokens: 6}], every_steps: 4}"
    run = tmp_path / "run"
    train(load_recipe(write_task(tmp_path), [f"validation={settings}", "stopping.max_steps=4"]), run)
    entry = [
        entry for line in (run / "log.jsonl").read_text().splitlines() if (entry := json.loads(line))["kind"] == "validation"
    ][-1]
    corpus = Corpus(run / "data" / "validation.arrow")
    translator = Translator.load(run, Search(kind="greedy", filters=[score_filter("min_tokens", tokens=6)]))
    sources = corpus.text("source_text", 1000)
    made = [each.text for each in translator.translate(sources, prefixes=["la"] * len(sources))]
    assert all(text.startswith("la") for text in made)
    assert corpus_scores(made, corpus.text("target_text", 1000))["chrf"].value == entry["scores"]["chrf"]


def test_special_tokens_are_in_no_text(trained):
    """A model that prefers padding, start and unknown to everything says them only where they are allowed."""
    model = copy.deepcopy(Translator.load(trained).model)
    tokenisers = Translator.load(trained).tokenisers
    head = dict(model.named_parameters())["nodes.source.embedding.weight"]
    with torch.no_grad():
        head[[0, 1, 3]] = 50 * head[10:20].mean(0)
    for search in (Search(kind="greedy"), Search(beams=3), Search(kind="sample", seed=1)):
        (found,) = Translator(model, tokenisers, search).translate(["the big dog sings"])
        assert not {0, 1, 3} & set(found.hypotheses[0].ids.tolist())
    (found,) = Translator(model, tokenisers, Search(kind="greedy", special_tokens=True)).translate(["the big dog sings"])
    assert {0, 1, 3} & set(found.hypotheses[0].ids.tolist())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("the old dog", "a list of texts is expected, and this is one str of 11; write it in brackets"),
        (b"dog", "a list of texts is expected, and this is one bytes of 3"),
        ([("dog", "cat")], "a text must be a str, and one is of type tuple; pass a list of texts"),
        ([3], "a text must be a str, and one is of type int"),
    ],
)
def test_lines_are_a_list_of_texts(translator, lines, message):
    with pytest.raises(InputError, match=message):
        list(translator.translate(lines))
    with pytest.raises(InputError, match=message.split(";")[0]):
        translator.tokenisers["source"].encode(lines)


def test_prefixes_are_a_list_of_texts(translator):
    with pytest.raises(InputError, match="a list of texts is expected, and this is one str of 2"):
        list(translator.translate(["the dog", "the cat"], prefixes="la"))


def test_the_mode_of_the_model_is_left_as_it_was(translator):
    translator.model.train()
    list(translator.translate(["dog"]))
    assert translator.model.training
    translator.model.eval()


def test_a_model_that_was_built_and_not_trained_has_no_tokeniser(trained, tmp_path):
    save(load(model_in(trained)), tmp_path / "model")
    with pytest.raises(InputError, match=r"TFK104 .*has no tokeniser: neither tokeniser.json nor source.json, target.json"):
        Translator.load(tmp_path / "model")


def test_an_altered_tokeniser_is_reported(trained, tmp_path):
    place = shutil.copytree(model_in(trained), tmp_path / "model")
    text = (place / "tokeniser.json").read_text()
    (place / "tokeniser.json").write_text(text + " ")
    with pytest.raises(StoreError, match=r"TFK082 .*tokeniser.json .*it was altered or cut off"):
        Translator.load(place)


def test_a_tokeniser_of_another_model_is_reported(translator):
    entry = next(entry for entry in PARTS["tokeniser"] if entry.name == "characters")
    other = train_tokeniser(Component(entry, entry.options()), ["abc"], 0)
    with pytest.raises(InputError) as caught:
        Translator(translator.model, {"source": other, "target": other})
    assert "TFK106 `source` has a vocabulary of 90, its tokeniser has 7 ids" in str(caught.value)
    assert "TFK106 `target`" in str(caught.value)


@pytest.mark.parametrize("write", ["data", "numpy", "foreach"])
def test_writes_that_torch_does_not_count_reach_a_translator_that_lives(write, translator):
    model = copy.deepcopy(translator.model)
    own = Translator(model, translator.tokenisers)
    lines = ["a b c", "b a", "c c c a"] * 3

    def scores(subject):
        return [line.hypotheses[0].score for line in subject.translate(lines)]

    before = scores(own)
    assert scores(own) == before  # its weights are packed by now
    for parameter in model.parameters():
        if write == "data":
            parameter.data.mul_(1.25)
        elif write == "numpy":
            parameter.detach().numpy()[...] *= 1.25
        else:
            torch._foreach_copy_([parameter.data], [parameter.data * 1.25])
    after = scores(own)
    assert after != before
    assert after == scores(Translator(copy.deepcopy(model), translator.tokenisers))


def test_a_translator_that_lives_uses_the_weights_of_torch_ema_while_they_are_in_place(translator):
    model = copy.deepcopy(translator.model)
    own = Translator(model, translator.tokenisers)
    lines = ["a b c", "b a", "c c c a"] * 3

    def scores(subject):
        return [line.hypotheses[0].score for line in subject.translate(lines)]

    average = ExponentialMovingAverage(model.parameters(), decay=0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    average.update()
    raw = scores(own)
    assert scores(own) == raw  # its weights are packed by now
    with average.average_parameters():
        averaged = scores(own)
        assert averaged == scores(Translator(copy.deepcopy(model), translator.tokenisers))
    assert averaged != raw
    assert scores(own) == raw
    average.copy_to()
    assert scores(own) == averaged


def test_alignments_follow_the_weights(trained):
    """Against a plain loop: pieces to words by their text, the largest weight of a head, links of words whose pieces are."""
    site = "decoder.0.cross_attention"
    for search in (Search(kind="greedy"), Search(beams=3, n_best=2)):
        translator = Translator.load(trained, search, attention=[site], alignment=AlignmentSite(site=site, head=1))
        found = list(translator.translate(["the  big dog sings", "", "new tree"]))
        assert found[1].alignments == ()
        for one in (found[0], found[2]):
            sources = words_of(translator.tokenisers["source"].pieces(one.source_ids))
            for hypothesis, pieces, links, by_piece in zip(
                one.hypotheses, one.pieces, one.alignments, one.piece_alignments, strict=True
            ):
                weights, expected = hypothesis.attention[site][1].tolist(), set()
                for at, word in enumerate(words_of(pieces)):
                    real = [key for key, source in enumerate(sources) if source is not None]
                    best = max(real, key=lambda key: weights[at][key])
                    assert by_piece[at] == (None if word is None else best)
                    expected |= set() if word is None else {(sources[best], word)}
                assert links == tuple(sorted(expected))
    plain = Translator.load(trained, Search(kind="greedy"), alignment=True)
    (one,) = plain.translate(["the dog"])
    assert plain.alignment == AlignmentSite(site=site)
    assert not one.hypotheses[0].attention
    with pytest.raises(InputError, match=r"TFK076 `decoder.0.cross_attention` has no head 2; its heads are 0 to 1"):
        Translator.load(trained, alignment=AlignmentSite(site=site, head=2))
    with pytest.raises(InputError, match=r"TFK076 `.*` matches 3 sites, of which 1 align"):
        Translator.load(trained, alignment=AlignmentSite(site="*"))


def words_of(pieces):
    """The word of each piece by the marks at the start of words; None for special tokens and for marks alone."""
    word, words = -1, []
    for piece in pieces:
        word += piece.startswith("▁")
        words.append(None if piece in ("</s>", "▁") else word)
    return words


@pytest.mark.parametrize("text", ["der Hund ist  alt", "Straße, é 犬は \u00a0走る 😀!", "", "   ", "1\u20442 x\u0301y"])
def test_words_of_ids_and_of_ranges_agree_with_white_space(text):
    lines = ["der alte Hund läuft", "die Katze, das Haus!", "犬"]
    entry = PARTS["tokeniser"][0]
    for size in (300, 40):
        tokeniser = train_tokeniser(Component(entry, entry.options(byte_fallback=size == 300)), lines, size)
        ids, of_line = encode_with_words(tokeniser, text)
        decoded = tokeniser.decode(ids)
        for of_text, words in ((text, of_line), (decoded, words_of_ids(tokeniser, ids))):
            assert len(words) == len(ids)
            assert {word for of_piece in words for word in of_piece} == set(range(len(of_text.split())))
            assert [word for of_piece in words for word in of_piece] == sorted(word for of_piece in words for word in of_piece)


def test_lines_are_divided_into_sentences_and_joined(translator, monkeypatch):
    """With a stand-in for the library, which divides after full stops and keeps white space, as it does."""
    library = types.ModuleType("sentencex")
    library.segment = lambda language, text: re.findall(r"[^.]*\.\s*|[^.]+$", text)
    monkeypatch.setitem(sys.modules, "sentencex", library)
    lines = ["the dog. old cat.  red tree", "", "one house", ". .", "the old tree."]
    parts = [["the dog.", "old cat.", "red tree"], [""], ["one house"], [".", "."], ["the old tree."]]
    for chunk in (1, 2, 1000):
        found = list(translator.translate(lines, split="en", chunk=chunk))
        assert [one.source for one in found] == lines
        for one, sentences_of_line in zip(found, parts, strict=True):
            alone = list(translator.translate(sentences_of_line))
            assert one.text == " ".join(part.text for part in alone)
            assert one.unknown == sum(part.unknown for part in alone)
            if one.hypotheses:
                expected = sum(part.hypotheses[0].log_probability for part in alone)
                assert one.hypotheses[0].log_probability == pytest.approx(expected)
                assert one.hypotheses[0].finished == all(part.hypotheses[0].finished for part in alone)
                assert len(one.pieces[0]) == len(one.hypotheses[0].ids) == sum(len(part.pieces[0]) for part in alone)
    begun = list(translator.translate(lines[:3], split="en", prefixes=["granda", "", "eta"], chunk=2))
    assert [one.text.split()[:1] for one in begun] == [["granda"], [], ["eta"]]
    for prefixes, message in ((["la"], "1 prefixes, and more lines"), (["", "", "", ""], "3 lines, and more prefixes")):
        with pytest.raises(InputError, match=f"TFK078 there are {message}"):
            list(translator.translate(lines[:3], split="en", prefixes=prefixes))
    with pytest.raises(InputError, match="TFK078 the language of the sentences is 'English'"):
        list(translator.translate(lines, split="English"))
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(TfkitError, match="TFK097 dividing lines into sentences needs sentencex"):
        list(translator.translate(lines, split="en"))


def test_no_space_follows_a_full_width_character(translator, monkeypatch, decoded):
    library = types.ModuleType("sentencex")
    library.segment = lambda language, text: text.split("|")
    monkeypatch.setitem(sys.modules, "sentencex", library)
    decoded("新的一天。", "我们", "Hello.")
    (one,) = translator.translate(["the|dog|cat"], split="zh", chunk=3)
    assert one.text == "新的一天。我们Hello."
