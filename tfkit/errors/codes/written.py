"""What can be wrong in what a user writes."""

from __future__ import annotations

from .code import Code

WRITTEN: dict[str, Code] = {
    "TFK000": Code(
        "the file cannot be read",
        "A spec is a file that exists, that you may read, and that is no directory.",
        "tfkit check specs/",
        "Name one or more files.",
    ),
    "TFK001": Code(
        "the spec is too large",
        "A spec has at most 1 MiB, 20,000 values, 1,000 keys in a mapping and 40 levels; reading stops after 500 faults.",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
        "Say repeated layers with `num_layers` or `repeat`; they are never written out.",
    ),
    "TFK002": Code(
        "this is neither YAML nor JSON",
        "The text follows the grammar of YAML, of which JSON is a part; a file named `.json` is JSON. Indent with spaces.",
        "nodes: {source: {kind: tokens",
        "Close brackets and quotes, put a space after `:`, and indent with spaces.",
    ),
    "TFK003": Code(
        "the text is not UTF-8",
        "A spec is UTF-8, with or without a byte order mark, and holds no control characters.",
        "a file saved as UTF-16 or Latin-1",
        "Save the file as UTF-8.",
    ),
    "TFK004": Code(
        "a key is written twice",
        "A mapping has every key once. Most YAML readers keep the last one silently.",
        "defaults: {d_model: 512, d_model: 256}",
        "Remove one of the two.",
    ),
    "TFK005": Code(
        "anchors, aliases, tags and merge keys are no part of the language",
        "What repeats is said with `defaults`, `extends` and layer groups, and a tag could make a reader run code.",
        "encoder: &enc {kind: stack}\ndecoder: *enc",
        "Move what is common to `defaults`, or to a spec that this one extends.",
    ),
    "TFK006": Code(
        "a key is no plain name",
        "Keys are names, never lists or mappings.",
        "? [a, b]\n: 1",
        "Write a name and a colon.",
    ),
    "TFK007": Code(
        "a file holds one spec",
        "A file is one document, a mapping that starts with `tfkit: 1`. It is not empty.",
        "- kind: tokens",
        "Write `tfkit: 1`, `name`, `nodes` and `outputs`.",
    ),
    "TFK008": Code(
        "a number that nothing can hold",
        "Numbers are finite, whole numbers fit into 64 bits.",
        "dropout: .nan",
        "Write an ordinary number.",
    ),
    "TFK009": Code(
        "the version of the spec language",
        "Every spec says in which version of the language it is written. Older ones are migrated, newer ones refused.",
        "tfkit: 2",
        "Write `tfkit: 1`, or upgrade tfkit.",
    ),
    "TFK010": Code(
        "unknown key",
        "Every key is read by something, or it is an error. Names are those of the papers: d_model, num_heads, d_ff.",
        "attention: {nuw_heads: 8}",
        "Take the name that the message suggests.",
    ),
    "TFK011": Code(
        "a default that no node uses",
        "Each entry of `defaults` reaches at least one node. A default never switches an optional part on.",
        "defaults: {cross_attention: {num_heads: 4}}    # and no node has a memory",
        "Remove it, or write it where it belongs.",
    ),
    "TFK012": Code(
        "unknown name of a part",
        "Parts are looked up in the catalogue of the installed plugins, by exact name.",
        "norm: rms_nrom",
        "Correct the name, or install the plugin that brings it; `tfkit plugins` lists what is there.",
    ),
    "TFK013": Code(
        "a name that cannot be used",
        "Nodes and sub-layers have names of letters, digits and underscores that do not start with a digit. No node has the "
        "name of a top-level key or of a model's argument, and the sub-layers of a layer have different names.",
        "nodes: {outputs: {kind: tokens}}",
        "Choose another name.",
    ),
    "TFK014": Code(
        "an edge to nowhere",
        "`input`, `memory`, `share`, `tokens` and `outputs` name nodes of the spec, or `node.port` for a further output.",
        "input: sorce",
        "Take the node that the message suggests, or add it.",
    ),
    "TFK015": Code(
        "the edges form a cycle",
        "No node depends on itself, neither through its inputs nor through the tables it shares.",
        "a: {kind: dense, input: b}\nb: {kind: dense, input: a}",
        "Cut the cycle at the edge that the message points to.",
    ),
    "TFK016": Code(
        "`extends` does not work",
        "`extends` names one file, relative to this one; no chain returns to itself; `null` removes only what the base has.",
        "extends: bse.yaml",
        "Correct the file's name, or the name of what is to be removed.",
    ),
    "TFK017": Code(
        "an override does not work",
        "`--set key.path=value` names something in the spec; `nodes.` may be left out; items of lists go by number from 0.",
        "--set encodr.num_layers=12",
        "Correct the path.",
    ),
    "TFK018": Code(
        "a key in the wrong place",
        "The key exists, but is read somewhere else.",
        "encoder: {kind: stack, input: source, d_ff: 2048}",
        "Write it where the message says: `ffn: {d_ff: 2048}`.",
    ),
    "TFK019": Code(
        "written, but read by no layer",
        "What a stack, a group or a layer says is used by at least one of its layers.",
        "encoder: {kind: stack, input: source, num_layers: 6, cross_attention: {num_heads: 4}}    # no memory",
        "Remove it, or add the sub-layer that reads it.",
    ),
    "TFK020": Code(
        "a value of the wrong type",
        'Nothing is converted: 8.0 and "8" are no whole numbers, `yes` is no truth value (YAML 1.2).',
        "num_heads: eight",
        "Write a value of the type that the message names.",
    ),
    "TFK021": Code(
        "a wrong value",
        "The type is right, the value is not among those allowed.",
        "dropout: 1.5",
        "Choose a value within the bounds that the message names.",
    ),
    "TFK022": Code(
        "`kind` is missing",
        "A mapping that stands for a part says which part, unless `defaults` or an extended spec has said it.",
        "embedding_norm: {eps: 1.0e-6}",
        "Write `{kind: layer_norm, eps: 1.0e-6}`.",
    ),
    "TFK030": Code(
        "a key is missing",
        "What a part needs and has no default value must be written, in its place or in `defaults`.",
        "encoder: {kind: stack, num_layers: 6}",
        "Write the key: `input: source`.",
    ),
    "TFK031": Code(
        "two keys say the same thing",
        "`num_layers` and `layers` exclude each other, as do `share` and `vocab_size`: a shared table has its owner's size.",
        "target: {kind: tokens, share: source, vocab_size: 37000}",
        "Remove one of the two.",
    ),
    "TFK040": Code(
        "a rule between fields is broken",
        "Heads divide d_model unless head_dim is written; num_kv_heads divides num_heads; rotary acts on an even number of "
        "dimensions; a stack with cross-attention has a memory and one with a memory reads it; shared tables have one shape; "
        "a stack that decodes is causal.",
        "defaults: {d_model: 512, attention: {num_heads: 7}}",
        "Change one of the fields that the message names.",
    ),
    "TFK041": Code(
        "a sequence is needed",
        "A stack reads and attends to sequences; a pooled node gives one vector per row.",
        "encoder: {kind: stack, input: pooled, num_layers: 2}",
        "Read the node before the pooling.",
    ),
    "TFK042": Code(
        "unknown port",
        "`node.port` names one of the further outputs of that node's kind.",
        "input: encoder.layer",
        "Write `encoder.layers`, or the node's name alone.",
    ),
    "TFK043": Code(
        "a node that nothing reads",
        "Every node is an output or is read, directly or not, by one.",
        "outputs: [encoder]    # and the spec has a decoder",
        "Add the node to `outputs`, read it, or remove it.",
    ),
    "TFK044": Code(
        "the parameter count is not the expected one",
        "`expect.parameters` is the number of trainable parameters.",
        "expect: {parameters: 63000000}",
        "Correct the spec or the number; `tfkit show` lists the count of each node.",
    ),
    "TFK045": Code(
        "the model is too large",
        "The weights must fit into the memory of a machine, and of the device when the model is built.",
        "num_layers: 1000000000",
        "Make the model smaller, or choose a smaller dtype or another device.",
    ),
    "TFK046": Code(
        "the device is not there",
        "A model is built on, and moved to, a device of this machine.",
        "tfkit build --device cuda    # without a GPU",
        "Use `--device cpu`; `tfkit plan` plans for devices that are not there.",
    ),
}
