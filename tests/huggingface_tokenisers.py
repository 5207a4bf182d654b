"""Small tokenisers of transformers, trained on a few texts, and directories of their files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXTS = [
    "A man walks his dog, and the dog runs!", "Zwei Hunde laufen über die große Wiese.", "don't we'll I'm 2,048 x 3.14159",
    "国境の長いトンネルを抜けると雪国であった。", "Mixed 中文 and Ｆｕｌｌｗｉｄｔｈ ﬁ",
    "naïve café e\u0301cole A\u030angstro\u0308m",
    "👩‍👩‍👧 🇩🇪 👍🏽 smile 😀😀", "  leading and   inner \t spaces \n\n new line  ",
    "\u00a0no\u2003break\u200b zero", "\r\n\r\n",
    "İstanbul STRASSE ẞ", "a" * 150 + " end", "def f(x):\n    return x ** 2\n", "``quoted'' -- “curly” …",
    "\u0915\u094d\u0937 हिन्दी", "مرحبا بالعالم", "\x00\x07 control \ufffd", "</s> <s> [SEP] <pad>", "▁already ▁▁", "", " ", "x",
]  # fmt: skip
CORPUS = [text for text in TEXTS[:8] + TEXTS[10:13] if text] * 20
PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[3], TEXTS[6]), ("a", TEXTS[8]), (TEXTS[4], "b")]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def trained(model: Any, trainer: Any, split: Any) -> dict[str, Any]:
    tokeniser = Tokenizer(model)
    tokeniser.pre_tokenizer = split
    tokeniser.train_from_iterator(CORPUS, trainer)
    return json.loads(tokeniser.to_str())["model"]


def words() -> dict[str, int]:
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    return trained(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.BertPreTokenizer())["vocab"]


def merges(specials: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    trainer = trainers.BpeTrainer(vocab_size=450, special_tokens=specials, show_progress=False, initial_alphabet=BYTES)
    model = trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False))
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def pieces(place: Path, **options: Any) -> Path:
    """A sentencepiece model in a file."""
    written = io.BytesIO()
    settings = {"vocab_size": 230, "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=written, **settings)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(written.getvalue())
    return place


def bert(place: Path) -> Any:
    return transformers.BertTokenizer(vocab=words(), do_lower_case=True)


def bert_cased(place: Path) -> Any:
    return transformers.BertTokenizer(vocab=words(), do_lower_case=False, tokenize_chinese_chars=False)


def gpt2(place: Path) -> Any:
    vocab, pairs = merges(["<|endoftext|>"])
    return transformers.GPT2Tokenizer(vocab=vocab, merges=pairs)


def roberta(place: Path) -> Any:
    vocab, pairs = merges(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return transformers.RobertaTokenizer(vocab=vocab, merges=pairs)


def llama3(place: Path) -> Any:
    """The split, the model and the special tokens of Llama 3."""
    vocab, pairs = merges([])
    tokeniser = Tokenizer(models.BPE(vocab, pairs, ignore_merges=True))
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokeniser.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    tokeniser.decoder = decoders.ByteLevel()
    tokeniser.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    start = [("<|begin_of_text|>", tokeniser.token_to_id("<|begin_of_text|>"))]
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1", special_tokens=start
    )
    tokeniser.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokeniser, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"
    )


def clip(place: Path) -> Any:
    alphabet = [*BYTES, *(f"{byte}</w>" for byte in BYTES), "<|startoftext|>", "<|endoftext|>"]
    vocab = {piece: number for number, piece in enumerate(alphabet)}
    return transformers.CLIPTokenizer(vocab=vocab, merges=[])


def t5(place: Path) -> Any:
    pieces(place / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, model_type="unigram")
    return transformers.T5Tokenizer.from_pretrained(place, extra_ids=5)


def llama2(place: Path) -> Any:
    pieces(place / "tokenizer.model", model_type="bpe", byte_fallback=True, vocab_size=500, normalization_rule_name="identity")
    return transformers.LlamaTokenizer.from_pretrained(place)


def albert(place: Path) -> Any:
    symbols = ["[CLS]", "[SEP]", "[MASK]"]
    pieces(place / "spiece.model", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=symbols)
    return transformers.AlbertTokenizer.from_pretrained(place)


def pegasus(place: Path) -> Any:
    pieces(place / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return transformers.PegasusTokenizer.from_pretrained(place)


def xlm_roberta(place: Path) -> Any:
    pieces(place / "sentencepiece.bpe.model")
    return transformers.XLMRobertaTokenizer.from_pretrained(place)


def camembert(place: Path) -> Any:
    pieces(place / "sentencepiece.bpe.model")
    return transformers.CamembertTokenizer.from_pretrained(place)


def mbart(place: Path) -> Any:
    """Without a table of characters, which transformers 5 leaves out."""
    pieces(place / "sentencepiece.bpe.model", normalization_rule_name="identity")
    return transformers.MBartTokenizer.from_pretrained(place)


MADE = {each.__name__: each for each in (bert, bert_cased, gpt2, roberta, llama3, clip, t5, llama2)}
SETTINGS: dict[str, dict[str, Any]] = {
    "bert_cased": {"do_lower_case": False, "tokenize_chinese_chars": False},
    "t5": {"extra_ids": 5},
    "llama2": {"add_bos_token": True},
}
TYPES = {"bert_cased": "bert", "llama2": "llama", "llama3": "llama", "xlm_roberta": "xlm-roberta"}


def config(place: Path, model_type: str, **settings: Any) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({"model_type": model_type}))
    (place / "tokenizer_config.json").write_text(json.dumps(settings))


def marian(place: Path) -> Any:
    for side, size in (("source", 200), ("target", 150)):
        pieces(place / f"{side}.spm", vocab_size=size, split_digits=side == "source")
    models = [sentencepiece.SentencePieceProcessor(model_file=str(place / f"{side}.spm")) for side in ("source", "target")]
    names = {each.id_to_piece(number) for each in models for number in range(each.get_piece_size())}
    order = ["</s>", "<unk>", ">>fra<<", *sorted(names - {"<s>", "</s>", "<unk>"}), "<pad>"]
    (place / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(order)}))
    config(place, "marian")
    return transformers.MarianTokenizer.from_pretrained(place)


def m2m_100(place: Path) -> Any:
    """The ids of the pieces are in `vocab.json`, in another order."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(pieces(place / "sentencepiece.bpe.model", model_type="bpe")))
    names = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    order = ["<s>", "<pad>", "</s>", "<unk>", *sorted(names)]
    (place / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(order)}))
    config(place, "m2m_100")
    return transformers.M2M100Tokenizer.from_pretrained(place)


def older_files(name: str, place: Path) -> Any:
    """The files of a tokeniser without `tokenizer.json`, and the tokeniser itself."""
    config(place, TYPES.get(name, name), **SETTINGS.get(name, {}))
    theirs = globals()[name](place)
    if name.startswith("bert"):
        vocab = json.loads(theirs.backend_tokenizer.to_str())["model"]["vocab"]
        (place / "vocab.txt").write_text("".join(f"{piece}\n" for piece in sorted(vocab, key=vocab.get)))
    elif name in ("gpt2", "roberta"):
        model = json.loads(theirs.backend_tokenizer.to_str())["model"]
        (place / "vocab.json").write_text(json.dumps(model["vocab"]))
        lines = [" ".join(pair) for pair in model["merges"]]
        (place / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]))
    return theirs
