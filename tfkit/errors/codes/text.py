"""What can be wrong with text, and go wrong in training."""

from __future__ import annotations

from .code import Code

TEXT: dict[str, Code] = {
    "TFK100": Code(
        "the text cannot be read",
        "Text is a regular file, plain or gzip, readable; gzip unpacks to 4 MiB, and beyond that to 100 times its size.",
        "tfkit train spec.yaml --source nowhere.en --target nowhere.de -o run",
        "Name a file.",
    ),
    "TFK101": Code(
        "the text is not UTF-8",
        "Text is UTF-8 without NUL, in lines of at most 1 MiB. A word of training text has at most 10,000 characters.",
        "a file saved as Latin-1",
        "Convert it: `iconv -f latin1 -t utf8 old.txt > new.txt`.",
    ),
    "TFK102": Code(
        "the files have different numbers of lines",
        "Line n of one file belongs to line n of the other.",
        "tfkit score out.de reference.de    # 999 and 1,000 lines",
        "Find where the files went apart: the message names the first line without a partner.",
    ),
    "TFK103": Code(
        "there is nothing to read",
        "Training and scoring need at least one row, training a line with text; at most 1,000,000 lines in a row are empty.",
        "an empty file",
        "Name a file that has lines, or loosen the limits that left all of them out.",
    ),
    "TFK104": Code(
        "there is no tokeniser",
        "A model that reads or writes text has its tokenisers beside it, with the parts of those that `tfkit train` saves.",
        "tfkit translate DIR    # of `tfkit build`, which knows no text",
        "Name a directory that `tfkit train` made.",
    ),
    "TFK105": Code(
        "the vocabulary is too small",
        "A vocabulary has room for 4 special tokens, for 256 bytes where `byte_fallback` is on, and for what is learnt.",
        "tokeniser: {kind: bpe, vocab_size: 100}",
        "Write a larger `vocab_size`, or `byte_fallback: false`.",
    ),
    "TFK106": Code(
        "the tokeniser is not the model's",
        "Every table of tokens is as long as its tokeniser has ids; padding is 0, start 1 and end 2.",
        "nodes: {target: {kind: tokens, start_id: 5}}",
        "Leave sizes and special ids to `tfkit train`, or write the ones of the message.",
    ),
    "TFK107": Code(
        "the data do not fit the model",
        "Parallel text needs a source that is read and a target that is predicted; running text one predicted input.",
        "tfkit train gpt2.yaml --source a.en --target a.de -o run",
        "Choose a spec for the task, or `data.kind` for the spec.",
    ),
    "TFK108": Code(
        "the data of a recipe are not complete",
        "A recipe names its training files, and either all of its validation files or none.",
        "data: {kind: parallel, source: train.en}",
        "Write the files that the message names, or give them as options.",
    ),
    "TFK109": Code(
        "a row is longer than a batch",
        "The longest row that is kept fits into a batch of `batching.tokens`.",
        "batching: {tokens: 100, max_length: 256}",
        "Write a larger `tokens`, or a smaller `max_length`.",
    ),
    "TFK110": Code(
        "the loss is no number",
        "Every loss of training is finite.",
        "schedule: {kind: constant, peak: 10}",
        "Begin anew, perhaps `--from` this run: with a lower rate, `clip_norm` or float32; the batch was saved for replay.",
    ),
    "TFK111": Code(
        "a run cannot go on",
        "A run goes on in its own directory, with all on which its weights depend as it was.",
        "tfkit train --resume run --set batching.tokens=1",
        "Change only `stopping`, `validation` or `keeping`, or begin a new run.",
    ),
    "TFK112": Code(
        "the validation cannot be made",
        "BLEU and chrF compare translations with a reference.",
        "data: {kind: language}\nvalidation: {metric: bleu}",
        "Write `metric: loss`.",
    ),
    "TFK113": Code(
        "a checkpoint of another run",
        "A checkpoint is read with the recipe, data and tokenisers with which it was written.",
        "a corpus that was changed between training and --resume",
        "Go on with the files that the run began with.",
    ),
    "TFK114": Code(
        "these cannot be averaged",
        "What is averaged are weights of one spec and one vocabulary.",
        "tfkit average en-de de-en -o mean",
        "Name a run, or models of one run.",
    ),
    "TFK115": Code(
        "a table of labelled texts cannot be used",
        "Every line has the columns of the first, a text and a label among them; rows share labels; validation has no other.",
        "data: {kind: classification, table: train.tsv, label_column: 3}",
        "Write `text_column` and `label_column`, counted from 1, and `header: true` where the first line names them.",
    ),
    "TFK116": Code(
        "the labels are not the model's",
        "A classifier has a name for every class of its output, beside it in `labels.json`, as `tfkit train` saves it.",
        'tfkit.Classifier(model, tokeniser, ["good", "bad"])    # of a model with three classes',
        "Name a directory that `tfkit train` made of a classification.",
    ),
    "TFK117": Code(
        "the run cannot start from that model",
        "Tokenisers are taken from a run or a model, and weights of equal name and shape: half of them, or `pretrained_share`.",
        "tfkit train recipe.yaml --from runs/of-another-spec -o run",
        "Name a model whose parts have the names and sizes of the spec, leave `tokeniser` to it, or ask for a smaller share.",
    ),
    "TFK118": Code(
        "these processes cannot train together",
        "The processes of a run share the batches of every step, a file system, and with FSDP2 the weights; each has a device.",
        "torchrun --nproc-per-node 4 --no-python tfkit train recipe.yaml -o run    # accumulate: 1",
        "Write `batching.accumulate`, the batches of a step: at least as many as there are processes.",
    ),
    "TFK119": Code(
        "another process is gone",
        "All processes of a run work on every step: where one of them ends, all do.",
        "kill -9 $(pgrep -f tfkit | head -1)",
        "Start all of them again with `--resume DIR`; what was printed before tells why one ended, where it could.",
    ),
    "TFK120": Code(
        "nothing can be compiled here",
        "`compile: true` needs a C++ compiler and Python's headers, on CUDA Triton; and parts that can be compiled.",
        "compile: true    # on a machine without g++",
        "Install them, name another attention backend, or leave `compile` out.",
    ),
    "TFK121": Code(
        "the run is in use",
        "One process works on a run, or the processes that torchrun starts together. A killed one does not hold it any more.",
        "tfkit train --resume run    # twice at once",
        "Wait until the process that the message names has ended, or end it.",
    ),
}
