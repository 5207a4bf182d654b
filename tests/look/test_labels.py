"""Tokens as text."""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tfkit.look.labels import labels, short


class ByteLevel:
    """The tokeniser of GPT-2 on a small text, with the members that labels read."""

    special_ids = frozenset({0})
    word_mark = "Ġ"

    def __init__(self):
        self.library = Tokenizer(models.BPE())
        self.library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=["</s>"], show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )  # fmt: skip
        self.library.train_from_iterator(["the old dog "] * 9, trainer)

    def pieces(self, ids):
        return [self.library.id_to_token(number) for number in ids]

    def decode(self, ids):
        return self.library.decode(list(ids), skip_special_tokens=False)


def test_bytes_of_one_character_show_it_and_spaces_are_visible():
    tokeniser = ByteLevel()
    ids = [0, *tokeniser.library.encode("the old 犬\n").ids]
    assert labels(tokeniser, ids) == ("</s>", "the", "▁old", "␣", "犬 1/3", "犬 2/3", "犬 3/3", "⏎")
    assert labels(tokeniser, ids[4:6]) == tuple(tokeniser.pieces(ids[4:6]))  # a part of a character alone
    assert len(short("x" * 99)) == 60
    assert json.dumps(labels(tokeniser, [])) == "[]"
