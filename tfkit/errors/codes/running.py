"""What can go wrong with plugins, backends, models and the command line."""

from __future__ import annotations

from .code import Code

RUNNING: dict[str, Code] = {
    "TFK050": Code(
        "a bad entry",
        "A plugin's hook returns a list of entries of its slot, with a writable name and an options model, for this contract.",
        'Norm(name="my norm", ...)',
        "Tell the author of the plugin, whom the message names.",
    ),
    "TFK051": Code(
        "a misspelt hook",
        "Every function that a plugin marks with `hookimpl` is a hook of tfkit.",
        "@hookimpl\ndef tfkit_normes(): ...",
        "Take the name that the message suggests.",
    ),
    "TFK052": Code(
        "two parts with one name",
        "A name is offered once in a slot.",
        'two plugins that both offer the norm "scale_norm"',
        "Uninstall one, or let it use a prefix: `acme.scale_norm`.",
    ),
    "TFK053": Code(
        "code of a plugin cannot be imported",
        'The "module:function" strings of an entry name what exists and imports.',
        'attend="acme.kernel:atend"',
        "Install what the reason names, or tell the author of the plugin.",
    ),
    "TFK054": Code(
        "a module and its entry disagree",
        "What a part builds has exactly the parameters that its entry lists.",
        "an entry lists `weight (512,)`, its module has `scale (512,)`",
        "Tell the author of the plugin, whom the message names.",
    ),
    "TFK055": Code(
        "a plugin failed while it judged its options",
        "An options model refuses a value with ValueError and raises nothing else.",
        "a validator that raises KeyError",
        "Tell the author of the plugin, whom the message names.",
    ),
    "TFK056": Code(
        "code of a plugin failed",
        "What a plugin offers works on everything that its entry declares, and tfkit never hides that it did not.",
        "an `attend` that raises ValueError",
        "Tell the author of the plugin, whom the message names; `--traceback` prints where it failed.",
    ),
    "TFK060": Code(
        "a backend cannot serve a site",
        "A requested backend is used or refused, never replaced. `auto` and an explicit list are the only ways to fall back.",
        "attention: {backend: flex, dropout: 0.1}",
        "Choose a backend that would work, write a list `[flex, sdpa]`, or `auto`.",
    ),
    "TFK061": Code(
        "the input is longer than the position table",
        "A learned table tells `max_len` positions apart.",
        "model(tokens=ids)    # ids (1, 600), max_len 512",
        "Shorten the input, or build with a larger `max_len`.",
    ),
    "TFK062": Code(
        "a table of `auto` cannot be used",
        "A table is what `tfkit bench auto --json FILE` writes, and every backend that it measures is installed.",
        "tfkit plan spec.yaml --auto-table notes.json",
        "Measure one on this device: `tfkit bench auto --json auto.json`",
    ),
    "TFK070": Code(
        "a tensor of the wrong shape",
        "Shapes are exactly those that the message names; nothing is broadcast or padded.",
        "a mask of length 7 for ids of length 8",
        "Give the tensor the shape that is wanted.",
    ),
    "TFK071": Code(
        "a tensor of the wrong dtype, or on another device",
        "Token ids and labels are int64 or int32, masks are bool; all are on the device of the model.",
        "model(tokens=ids.float())",
        "Convert the tensor yourself.",
    ),
    "TFK072": Code(
        "an id out of range",
        "Ids are 0 to vocab_size - 1.",
        "an id 37000 where vocab_size is 37000",
        "Check the tokenizer, or `vocab_size`.",
    ),
    "TFK073": Code(
        "the inputs of a call are wrong",
        "A model takes its tokens nodes by name, all of them, and nothing else.",
        "model(src=ids)",
        "Use the names that the message lists.",
    ),
    "TFK074": Code(
        "a row without an end token",
        "`take: end_token` needs one in every row.",
        "ids without `end_id`",
        "Append the end token.",
    ),
    "TFK075": Code(
        "the model cannot decode step by step",
        "Incremental decoding needs causal stacks between the input and its logits.",
        "model.start() of an encoder",
        "Decode a causal stack.",
    ),
    "TFK076": Code(
        "unknown attention site",
        "Sites are named by stack, layer and sub-layer: `encoder.3.self_attention`.",
        'model.set_backend("sdpa", ["encoder.99.self_attention"])',
        "Take one of the sites that the message lists.",
    ),
    "TFK077": Code(
        "decoding cannot start",
        "Decoding needs a start token or a prompt, logits over a vocabulary, and at least one step.",
        "a target without `start_id` and no prompt",
        "Write `start_id` at the tokens node, or give a prompt.",
    ),
    "TFK078": Code(
        "a setting of a search is wrong",
        "Beams, hypotheses and limits are whole numbers from 1 up; penalties and temperatures are numbers from 0 up.",
        "tfkit.beam_search(model, source=ids, max_new_tokens=50, beams=4, n_best=5)",
        "Take a value that the message allows.",
    ),
    "TFK080": Code(
        "the directory exists",
        "A saved model replaces another only when told so, and never anything else.",
        "tfkit build spec.yaml -o out    # twice",
        "Choose another directory, or `--force`.",
    ),
    "TFK081": Code(
        "the model cannot be written",
        "The disk has room and may be written; otherwise nothing is changed. A model is never pickled.",
        "tfkit build spec.yaml -o /proc/out",
        "Choose another directory.",
    ),
    "TFK082": Code(
        "the saved model is damaged",
        "A saved model has all its files, unaltered.",
        "a cut-off model.safetensors",
        "Save it again.",
    ),
    "TFK083": Code(
        "another format of saved model",
        "This tfkit reads the format that it writes.",
        "a model of a later tfkit",
        "Load it with the tfkit that wrote it.",
    ),
    "TFK090": Code(
        "the command line is wrong",
        "Commands and options are those that `--help` lists.",
        "tfkit chek spec.yaml",
        "See `tfkit --help`.",
    ),
    "TFK091": Code(
        "the first forward gave no numbers",
        "A model that was just built and initialised gives finite outputs.",
        "tfkit build deep.yaml --dtype float16",
        "Try `--dtype float32`, another backend, or another initialiser.",
    ),
    "TFK094": Code(
        "no such part to judge",
        "`tfkit conformance` judges a part that is installed, in a slot that has laws, under a profile that there is.",
        "tfkit conformance egaer",
        "Take one of the names that the message lists; `tfkit plugins` lists what is installed.",
    ),
    "TFK095": Code(
        "a stored case cannot be used",
        "What is replayed is a report of `tfkit conformance --json`, one of its findings or a case, of this suite's version.",
        "tfkit conformance --replay notes.txt",
        "Replay a file that `tfkit conformance NAME --json FILE` has written.",
    ),
    "TFK096": Code(
        "a part ended the process",
        "Importing a plugin and asking for its entries neither ends the process nor takes minutes.",
        "a plugin that calls os.abort() when it is imported",
        "Tell the author of the plugin, whom the message names.",
    ),
    "TFK097": Code(
        "a package is missing",
        "What only some commands need is an extra: `tfkit[conformance]` draws cases, `tfkit[train]` reads text.",
        "tfkit conformance acme.flash    # without the package hypothesis",
        "Install the extra that the message names.",
    ),
    "TFK099": Code(
        "a bug in tfkit",
        "Whatever the input, tfkit answers with a fault of that input or with what was asked for.",
        "an exception that nobody expected",
        "Report it, with the spec and what the same command prints with `--traceback`.",
    ),
}
