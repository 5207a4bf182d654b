"""Symbols are one token each, whatever the tokeniser does to other text, as sentencepiece's user_defined_symbols are."""

import io

import pytest
import sentencepiece

from tfkit import InputError, SpecError
from tfkit.data.tokeniser import TextTokeniser, train_tokeniser
from tfkit.recipe import recipe_of
from translation_task import sentences

SYMBOLS = ("<url>", "<2de>", "<2de>x", "｟NAME｠", "№")
LINES = [source for source, _ in sentences(60)]
TEXTS = [
    "<2de> the dog sees <url>, big", "see<url>here", "<url><url> <url>", "<2de>x old<2de>", "｟NAME｠ runs №", "the <url",
]  # fmt: skip


def trained(kind, **options):
    size = "" if kind == "characters" else "vocab_size: 400, "
    written = ", ".join(f"{name}: {value}" for name, value in options.items())
    text = "tfkit: 1\nname: x\nmodel: m\nstopping: {max_steps: 1}\n"
    text += f"tokeniser: {{kind: {kind}, {size}symbols: {list(SYMBOLS)}, {written}}}\n"
    recipe = recipe_of(text.encode(), "x.yaml")
    return train_tokeniser(recipe.tokeniser, LINES, 400)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters"])
@pytest.mark.parametrize("options", [{"normalise": "nfkc", "lowercase": "true"}, {}])
def test_symbols_are_never_divided_and_come_back_unchanged(kind, options):
    tokeniser = trained(kind, **options)
    again = TextTokeniser.from_json(tokeniser.to_json(), "x")
    assert again.symbols == SYMBOLS
    known = {"the", "big", "old", "runs", "see", "sees", "here", "dog"}
    for text in TEXTS:
        [ids] = again.encode([text])
        pieces = again.pieces(ids)
        if kind != "characters" or all(word in " ".join(LINES) for word in known):
            assert again.decode(ids) == text
        rest = text
        for symbol in sorted(SYMBOLS, key=len, reverse=True):
            assert pieces.count(symbol) == rest.count(symbol), (text, pieces)
            rest = rest.replace(symbol, "")
    ids = [again.piece_id(symbol) for symbol in SYMBOLS]
    assert len(set(ids)) == len(SYMBOLS)
    assert again.pieces(ids) == list(SYMBOLS)
    [stranger] = again.encode(["\U000f0000"])
    assert not set(stranger) & set(ids)


def test_the_pieces_around_a_symbol_are_those_of_sentencepiece():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, model_type="bpe", vocab_size=120, hard_vocab_limit=False,
        user_defined_symbols=list(SYMBOLS), minloglevel=2,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ours = trained("bpe", byte_fallback="false")

    def at_symbols(pieces):
        """Symbols, and whether a word boundary stands alone before them."""
        return [(piece, before == "▁") for before, piece in zip(["", *pieces], pieces, strict=False) if piece in SYMBOLS]

    for text in ("<2de> the dog sees <url> big", "see<url>dog", "<url><url> old"):
        mine, expected = at_symbols(ours.pieces(ours.encode([text])[0])), at_symbols(theirs.encode(text, out_type=str))
        assert mine == expected


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ("['<a b>']", r"tokeniser.symbols.*match"),
        ("['<a>', '<a>']", "the symbol `<a>` is written twice"),
        ("['</s>']", "`</s>` is a token of every tokeniser, and no symbol"),
        ("['<0x41>']", "`<0x41>` is a token of every tokeniser"),
        ("'<a>'", "a list is expected"),
        (r'["<a\u200b>"]', r"the symbol `<a\\u200b>` holds the control character U\+200B"),
        (r'["\u200d"]', r"the symbol '\\u200d' cannot be seen"),
        (r'["<a>", "<a\u200c>"]', r"the symbols '<a>' and '<a\\u200c>' look the same"),
        (r'["fi", "\ufb01"]', r"the symbols 'fi' and '\\ufb01' look the same"),
        (r'["é", "e\u0301"]', r"the symbols '\\xe9' and 'e\\u0301' look the same"),
    ],
)
def test_wrong_symbols_are_refused(symbols, message):
    text = f"tfkit: 1\nname: x\nmodel: m\nstopping: {{max_steps: 1}}\ntokeniser: {{kind: bpe, symbols: {symbols}}}\n"
    with pytest.raises(SpecError, match=message):
        recipe_of(text.encode(), "x.yaml")


@pytest.mark.parametrize(
    ("old", "new"),
    [('"content": "\U000f0000"', '"content": "\U000f0000\U000f0001"'), ('"<url>"', '"a b"'), ('"Isolated"', '"Removed"')],
)
def test_a_file_with_other_steps_is_refused(old, new):
    import json

    text = json.dumps(json.loads(trained("bpe").to_json()), ensure_ascii=False)
    assert old in text
    with pytest.raises(InputError, match="TFK104"):
        TextTokeniser.from_json(text.replace(old, new), "x")
