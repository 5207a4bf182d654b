"""Translates the lines of standard input with an export: python translate.py DIRECTORY"""

import sys

import ctranslate2
from tokenizers import Tokenizer

directory = sys.argv[1]
engine, tokeniser = ctranslate2.Translator(directory), Tokenizer.from_file(f"{directory}/tokeniser.json")
for line in sys.stdin:
    tokens = tokeniser.encode(line.strip()).tokens
    best = engine.translate_batch([tokens], beam_size=5)[0].hypotheses[0]
    print(tokeniser.decode([tokeniser.token_to_id(token) for token in best]))
