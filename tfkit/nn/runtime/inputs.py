"""Checks of the inputs of one call of a model, together and alone, and the padding that they have.

Nothing is cast, scaled, resized, padded or broadcast. Images of bytes are refused, because how they are scaled and normalised
belongs to the data, not to the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import Diagnostic, InputError
from ...slots.node import AnyInputRule, FeatureRule, ImageRule, InputRule
from ..model_plan import ModelPlan
from .decoding_state import DecodingState
from .node_output import Padding


def refuse_positional(arguments: tuple[Any, ...], plan: ModelPlan) -> None:
    """Raises InputError if a model is called with positional arguments."""
    if arguments:
        call = ", ".join(f"{name}={_example(rule)}" for name, rule in plan.inputs.items())
        message = f"`{plan.name}` got {len(arguments)} positional argument{'s' if len(arguments) > 1 else ''}"
        raise InputError(Diagnostic("TFK073", message, f"name the inputs: model({call})"))


def _example(rule: AnyInputRule) -> str:
    return "ids" if isinstance(rule, InputRule) else "images" if isinstance(rule, ImageRule) else "features"


Tables = Mapping[str, Mapping[str, Tensor]]
"""What a call says of its inputs beside the ids: tensors by argument (`lengths`), then by input node."""


def check_inputs(
    plan: ModelPlan, wanted: Iterable[str], inputs: Mapping[str, Tensor], tables: Tables, parameter: nn.Parameter | None
) -> dict[str, Padding]:
    """The padding of every input, and how its rows are divided.

    Args:
        plan: the plan of the model.
        wanted: the input nodes that the call must have, no more and no less.
        inputs: token ids (B, L), images (B, C, H, W) or features (B, L, F) by input node.
        tables: as in `Model.forward`: masks, lengths, segments, documents, positions, prefixes.
        parameter: a parameter of the model, whose device the inputs must be on.

    Raises:
        InputError: inputs are missing or unknown, or do not fit the plan or each other.
    """
    wanted = list(wanted)
    if set(inputs) != set(wanted):
        missing = [name for name in wanted if name not in inputs]
        unknown = [name for name in inputs if name not in wanted]
        message = f"missing inputs: {', '.join(missing) or 'none'}; unknown inputs: {', '.join(unknown) or 'none'}"
        raise InputError(Diagnostic("TFK073", message, f"`{plan.name}` takes {', '.join(wanted)}"))
    placed = {f"`{name}`": ids for name, ids in inputs.items()}
    for label, table in tables.items():
        if not isinstance(table, Mapping):
            raise InputError(Diagnostic("TFK073", f"`{label}` is a {type(table).__name__}", f"{label}={{input: tensor}}"))
        for name in table:
            if name not in inputs:
                raise InputError(Diagnostic("TFK073", f"{label} name `{name}`, which is no input of this call"))
        noun = "mask" if label == "masks" else label
        placed.update({f"{noun} of `{name}`": tensor for name, tensor in table.items()})
    check_places(parameter, placed)
    first: tuple[str, int] | None = None
    for name, tensor in inputs.items():
        _check_input(name, tensor, plan.inputs[name], parameter)
        if first is not None and tensor.shape[0] != first[1]:
            message = f"`{name}` has {tensor.shape[0]} rows, `{first[0]}` has {first[1]}"
            raise InputError(Diagnostic("TFK070", message, "all inputs of one call have the same batch size"))
        first = first or (name, tensor.shape[0])
    documents, segments = tables.get("documents", {}), tables.get("segments", {})
    if documents and (whole := [name for name in inputs if name not in documents]):
        message = f"documents of `{next(iter(documents))}` are given, and none of `{whole[0]}`"
        raise InputError(Diagnostic("TFK073", message, "number the documents of all inputs alike"))
    padding = {}
    for name, tensor in inputs.items():
        rule = plan.inputs[name]
        extra = {label: table[name] for label, table in tables.items() if name in table}
        padding[name] = _padding(name, tensor, rule, extra.get("masks"), extra.get("lengths"))
        if extra.keys() & {"documents", "positions", "prefixes"}:
            padding[name] = _divided(plan, name, tensor, padding[name], extra)
        if name in segments:
            check_segments(name, segments[name], tensor, rule.segments if isinstance(rule, InputRule) else 0)
    if len(documents) > 1:
        _check_same_documents(padding)
    return padding


def _check_same_documents(padding: Mapping[str, Padding]) -> None:
    """Raises InputError if a row of one input has a document that the row of another input has not. On CUDA nothing is read."""
    first: tuple[str, list[set[int]]] | None = None
    for name, rows in padding.items():
        assert rows.documents is not None, "all inputs have documents"
        if _unread(rows.documents) or rows.documents.device.type != "cpu":
            return
        visible = rows.as_visible(rows.documents.shape[1])
        real = rows.documents if visible is None else rows.documents.masked_fill(~visible, torch.iinfo(torch.int64).min)
        numbers = [set(row) - {torch.iinfo(torch.int64).min} for row in real.tolist()]
        for row, (here, there) in enumerate(zip(numbers, first[1] if first else numbers, strict=True)):
            if (alone := here ^ there) and first is not None:
                message = f"row {row} of `{name}` has the documents {sorted(here)}, of `{first[0]}` {sorted(there)}"
                raise InputError(Diagnostic("TFK073", message[:300], f"both need document {min(alone)}, or none"))
        first = first or (name, numbers)


def _divided(plan: ModelPlan, name: str, ids: Tensor, padding: Padding, extra: Mapping[str, Tensor]) -> Padding:
    """The padding, with the documents, positions and prefixes that the call gives for an input."""
    for label in ("documents", "positions", "prefixes"):
        if label not in extra:
            continue
        reason = plan.refused.get((label, name))
        if not isinstance(plan.inputs[name], InputRule):
            reason = "it has no token ids"
        if reason is not None:
            raise InputError(Diagnostic("TFK073", f"`{name}` cannot have {label}: {reason}"))
        shape = tuple(ids.shape[:1] if label == "prefixes" else ids.shape)
        axes = "(batch,)" if label == "prefixes" else "(batch, length)"
        check_tensor(f"the {label} of `{name}`", extra[label])
        if extra[label].is_floating_point() or extra[label].dtype is torch.bool or tuple(extra[label].shape) != shape:
            message = (
                f"the {label} of `{name}` are {extra[label].dtype} {tuple(extra[label].shape)}, its ids {tuple(ids.shape)}"
            )
            raise InputError(Diagnostic("TFK070", message, f"{label} are integers {axes}"))
    documents, positions, prefixes = (extra.get(label) for label in ("documents", "positions", "prefixes"))
    if documents is not None and prefixes is not None:
        message = f"`{name}` has documents and prefixes"
        raise InputError(Diagnostic("TFK073", message, "give one of them, or masks (B, Q, K) of its attention sites"))
    if documents is not None:
        documents = _continued(documents.long(), padding.as_visible(ids.shape[1]))
        later, earlier = documents[:, 1:], documents[:, :-1]
        rule = "a document is one piece of a row, and the numbers of its documents rise"
        _check_values(f"the documents of `{name}`", documents[:, 1:], later < earlier, f"{rule} from left to right", 1)
    if positions is not None:
        _check_values(f"the positions of `{name}`", positions, positions < 0, "positions are 0 or more")
    if prefixes is not None:
        rule = f"a prefix has 0 to {ids.shape[1]} tokens"
        _check_values(f"the prefixes of `{name}`", prefixes, (prefixes < 0) | (prefixes > ids.shape[1]), rule)
    restarts = documents is not None and positions is None
    if documents is not None and positions is None:
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(documents)  # (B, L)
        starts = torch.cat([places[:, :1] == 0, documents[:, 1:] != documents[:, :-1]], 1)
        positions = places - (places * starts).cummax(1).values
    return replace(padding, documents=documents, positions=positions, restarts=restarts, prefixes=prefixes)


def _continued(documents: Tensor, visible: Tensor | None) -> Tensor:
    """Documents (B, L) where padding has the number of the token before it; padding at the left has one below all others."""
    if visible is None:
        return documents
    lowest = torch.iinfo(documents.dtype).min
    filled = torch.where(visible, documents, lowest)
    last = torch.where(visible, torch.arange(documents.shape[1], device=documents.device), 0).cummax(1).values  # (B, L)
    return filled.gather(1, last)


def _check_values(label: str, values: Tensor, wrong: Tensor, rule: str, shift: int = 0) -> None:
    """Raises InputError at the first of `wrong`; `values` starts at column `shift`. On CUDA an assertion avoids a sync."""
    if _unread(values):
        return
    if values.device.type != "cpu":
        torch._assert_async((~wrong).all(), f"TFK070: {label} are wrong: {rule}")
    elif bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        value, place[-1] = int(values[tuple(place)]), place[-1] + (shift if len(place) > 1 else 0)
        raise InputError(Diagnostic("TFK070", f"{label} hold {value} at {place}", rule))


def _unread(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor cannot be read: while torch traces."""
    return torch.compiler.is_compiling() or tensor.is_meta or torch._C._are_functorch_transforms_active()


def _check_input(name: str, tensor: Tensor, rule: AnyInputRule, parameter: nn.Parameter | None) -> None:
    if isinstance(rule, InputRule):
        check_ids(name, tensor, rule.vocab_size)
    elif isinstance(rule, ImageRule):
        check_images(name, tensor, rule, parameter)
    else:
        check_features(name, tensor, rule, parameter)


def _padding(name: str, tensor: Tensor, rule: AnyInputRule, mask: Tensor | None, lengths: Tensor | None) -> Padding:
    if isinstance(rule, ImageRule):
        if mask is not None or lengths is not None:
            label = "a mask is" if lengths is None else "lengths are"
            raise InputError(Diagnostic("TFK073", f"{label} given for the images `{name}`", "images have no padding"))
        return Padding()
    padding = given_padding(name, tensor.shape[:2], mask, lengths)
    if padding is None:
        return padding_from_ids(tensor, rule) if isinstance(rule, InputRule) else Padding()
    return padding


def check_tensor(label: str, tensor: Any) -> None:
    """Raises InputError if `tensor` is not a dense tensor."""
    if not isinstance(tensor, Tensor):
        raise InputError(Diagnostic("TFK071", f"{label} is a {type(tensor).__name__}", "give a tensor"))
    if tensor.layout is not torch.strided:
        raise InputError(Diagnostic("TFK071", f"{label} has layout {tensor.layout}", "give a dense tensor: .to_dense()"))


def check_ids(name: str, ids: Tensor, vocab_size: int) -> None:
    """Raises InputError unless ids (B, L) are ids of this vocabulary. On CUDA an assertion on the device avoids a sync."""
    check_tensor(f"`{name}`", ids)
    shape = tuple(ids.shape)
    if ids.dtype not in (torch.int64, torch.int32):
        raise InputError(Diagnostic("TFK071", f"`{name}` has dtype {ids.dtype}", "token ids are int64 or int32"))
    if ids.dim() != 2 or 0 in shape:
        raise InputError(Diagnostic("TFK070", f"`{name}` has shape {shape}", "token ids are (batch, length), both at least 1"))
    if _unread(ids):
        return
    if ids.device.type != "cpu":
        torch._assert_async(
            ((ids >= 0) & (ids < vocab_size)).all(), f"TFK072: an id in `{name}` is outside 0..{vocab_size - 1}"
        )
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        row, column = ((ids == wrong).nonzero()[0]).tolist()
        message = f"`{name}` {shape} holds the id {wrong} at [{row}, {column}], but the vocabulary has {vocab_size} ids"
        raise InputError(Diagnostic("TFK072", message, f"ids are 0..{vocab_size - 1}"))


def check_places(parameter: nn.Parameter | None, tensors: Mapping[str, Any]) -> None:
    """Raises InputError if a tensor is not on the device of `parameter`, a parameter of the model. Sharded and offloaded
    parameters are skipped, since they move when they are used."""
    if type(parameter) is not nn.Parameter:
        return
    for label, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.device != parameter.device:
            message = f"{label} is on {tensor.device}, the model on {parameter.device}"
            raise InputError(Diagnostic("TFK071", message, "move one of them: `.to(model.device)`, or `model.to(...)`"))


def check_pairs(pattern: str, pairs: Any, inputs: Mapping[str, Tensor], parameter: nn.Parameter | None) -> None:
    """Raises InputError unless the mask of attention sites is bool (B, Q, K) on the device of the model. The sites check Q and
    K."""
    check_tensor(f"the mask of `{pattern}`", pairs)
    rows = next((tensor.shape[:1] for tensor in inputs.values() if isinstance(tensor, Tensor)), pairs.shape[:1])
    if pairs.dtype is not torch.bool or pairs.dim() != 3 or pairs.shape[:1] != rows:
        message = f"the mask of `{pattern}` is {pairs.dtype} {tuple(pairs.shape)}"
        fix = "the mask of an attention site is bool (batch, queries, keys), that of an input bool (batch, length)"
        raise InputError(Diagnostic("TFK070", message, fix))
    check_places(parameter, {f"the mask of `{pattern}`": pairs})


def check_segments(name: str, segments: Tensor, ids: Tensor, count: int) -> None:
    """Raises InputError unless segments are (B, L) integers below `count`, the size of the segment table (0: no table)."""
    if not count:
        message = f"`{name}` has no segments: `segments` are token types, as BERT's, and this node has no table of them"
        fix = "for token types, write `segments: 2` at the node; for several documents in one row, give `documents`"
        raise InputError(Diagnostic("TFK073", message, fix))
    check_tensor(f"`segments of {name}`", segments)
    if segments.shape != ids.shape:
        message = f"the segments of `{name}` have shape {tuple(segments.shape)}, its ids {tuple(ids.shape)}"
        raise InputError(Diagnostic("TFK070", message))
    check_ids(f"segments of {name}", segments, count)


def given_padding(name: str, shape: torch.Size, mask: Tensor | None, lengths: Tensor | None) -> Padding | None:
    """The padding of a sequence of `shape` (B, L) from a mask (B, L) bool or lengths (B,) integers; None if neither is
    given."""
    if mask is not None and lengths is not None:
        raise InputError(Diagnostic("TFK073", f"both a mask and lengths are given for `{name}`", "give one"))
    if mask is not None:
        check_tensor(f"the mask of `{name}`", mask)
        if mask.dtype is not torch.bool or mask.shape != shape:
            message = f"the mask of `{name}` is {mask.dtype} {tuple(mask.shape)}, its batch and length are {tuple(shape)}"
            raise InputError(Diagnostic("TFK070", message, "a mask is bool (batch, length), True for real tokens"))
        return Padding(visible=mask)
    if lengths is not None:
        check_tensor(f"the lengths of `{name}`", lengths)
        if lengths.is_floating_point() or lengths.dtype is torch.bool or lengths.shape != shape[:1]:
            message = (
                f"the lengths of `{name}` are {lengths.dtype} {tuple(lengths.shape)}, its batch and length are {tuple(shape)}"
            )
            raise InputError(Diagnostic("TFK070", message, "lengths are integers, one per row"))
        _check_lengths(name, lengths, shape[1])
        return Padding(lengths=lengths)
    return None


def _check_lengths(name: str, lengths: Tensor, longest: int) -> None:
    """Raises InputError unless lengths (B,) are 0 to the length of the rows. On CUDA an assertion avoids a sync."""
    if _unread(lengths):
        return
    wrong = (lengths < 0) | (lengths > longest)
    if lengths.device.type != "cpu":
        torch._assert_async((~wrong).all(), f"TFK070: a length of `{name}` is outside 0..{longest}")
    elif bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        message = f"`{name}` has rows of {longest}, and row {row} of its lengths is {int(lengths[row])}"
        raise InputError(Diagnostic("TFK070", message, f"lengths are 0..{longest}"))


def check_images(name: str, images: Tensor, rule: ImageRule, parameter: nn.Parameter | None) -> None:
    """Raises InputError unless images are (B, channels, H, W) of the size and dtype that the model takes, and finite."""
    check_tensor(f"`{name}`", images)
    shape = tuple(images.shape)
    size = f"multiples of {rule.patch}" if rule.any_size else f"{rule.size} x {rule.size}"
    if images.dim() != 4 or 0 in shape:
        fix = f"images are (batch, channels, height, width): (B, {rule.channels}, H, W), H and W {size}"
        raise InputError(Diagnostic("TFK070", f"`{name}` has shape {shape}", fix))
    _, channels, height, width = shape
    if channels != rule.channels:
        message = f"`{name}` {shape} has {channels} {_channels(channels)}, the model takes {rule.channels}"
        fix = "the second axis is that of channels: images.permute(0, 3, 1, 2)" if width == rule.channels else ""
        raise InputError(
            Diagnostic("TFK070", message, fix or f"convert the images, or write `channels: {channels}` in the spec")
        )
    fits = height % rule.patch == width % rule.patch == 0 if rule.any_size else height == width == rule.size
    if not fits:
        message = f"`{name}` {shape} holds images of {height} x {width}, the model takes {size}"
        fix = "resize or crop them" if rule.any_size else "resize them, or write `any_size: true` at the node"
        raise InputError(Diagnostic("TFK070", message, fix))
    _check_numbers(name, images, "images", parameter)


def check_features(name: str, features: Tensor, rule: FeatureRule, parameter: nn.Parameter | None) -> None:
    """Raises InputError unless features are (B, L, size) of the dtype that the model takes, and finite."""
    check_tensor(f"`{name}`", features)
    shape = tuple(features.shape)
    if features.dim() != 3 or 0 in shape or shape[2] != rule.size:
        turned = features.dim() == 3 and shape[1] == rule.size
        fix = "the last axis is that of features: features.mT" if turned else ""
        form = f"features are (batch, length, {rule.size})"
        raise InputError(Diagnostic("TFK070", f"`{name}` has shape {shape}; {form}", fix or "batch and length are at least 1"))
    _check_numbers(name, features, "features", parameter)


def _check_numbers(name: str, tensor: Tensor, kind: str, parameter: nn.Parameter | None) -> None:
    """Raises InputError unless all numbers are finite and of the model's dtype. On CUDA an assertion avoids a sync."""
    if not tensor.is_floating_point():
        fix = f"scale and normalise them as in training, for instance {kind}.float() / 255"
        raise InputError(Diagnostic("TFK071", f"`{name}` has dtype {tensor.dtype}, {kind} are real numbers", fix))
    # Sharded and offloaded parameters are cast when they are used; autocast casts the input.
    known = type(parameter) is nn.Parameter and not torch.is_autocast_enabled(tensor.device.type)
    if known and parameter is not None and tensor.dtype is not parameter.dtype:
        message = f"`{name}` has dtype {tensor.dtype}, the model {parameter.dtype}"
        raise InputError(Diagnostic("TFK071", message, f"convert it: {kind}.to(model.dtype)"))
    if _unread(tensor):
        return
    finite = tensor.isfinite()
    if tensor.device.type != "cpu":
        torch._assert_async(finite.all(), f"TFK079: `{name}` holds NaN or infinity")
    elif not bool(finite.all()):
        place = (~finite).nonzero()[0].tolist()
        message = f"`{name}` {tuple(tensor.shape)} holds {float(tensor[tuple(place)])} at {place}"
        raise InputError(Diagnostic("TFK079", message, f"{kind} are finite numbers; was there a log of 0 or a division by 0?"))


def _channels(count: int) -> str:
    return "channel" if count == 1 else "channels"


def padding_from_ids(ids: Tensor, rule: InputRule) -> Padding:
    """The padding of ids (B, L): the tokens `pad_id`, except the start token. None, where `pad_id` is also `end_id`.

    If padding and start have the same id, the start token is the last pad before the first other token, or the first token of
    a row that has no other.
    """
    if rule.pad_id is None or rule.pad_id == rule.end_id:
        return Padding()
    visible = ids != rule.pad_id  # (B, L)
    if rule.start_id == rule.pad_id:
        length = ids.shape[1]
        next_visible = torch.cat([visible[:, 1:], visible.new_zeros(ids.shape[0], 1)], 1)
        before_first = visible.cumsum(1) == 0
        start = before_first & next_visible
        only_pads = ~visible.any(1, keepdim=True) & (torch.arange(length, device=ids.device) == 0)
        visible = visible | start | only_pads
    return Padding(visible=visible)


def step_padding(state: DecodingState, ids: Tensor, visible: Tensor | Literal[True] | None, rule: InputRule) -> Padding:
    """The padding of the sequence so far and the new ids (B, n), from `visible` as in `Model.step`.

    Raises:
        InputError: `visible` is not bool or has another shape than the ids.
    """
    if visible is not None and visible is not True:
        check_tensor("`visible`", visible)
    if isinstance(visible, Tensor) and (visible.dtype is not torch.bool or visible.shape != ids.shape):
        message = f"`visible` is {visible.dtype} {tuple(visible.shape)}, the ids are {tuple(ids.shape)}"
        raise InputError(Diagnostic("TFK070", message, "it is bool, True for real tokens, of the ids' shape"))
    if visible is None and rule.pad_id is not None:
        whole = ids if state.ids is None else torch.cat([state.ids, ids], 1)  # (B, length + n)
        whole_visible = padding_from_ids(whole, rule).as_visible(whole.shape[1])
        visible = None if whole_visible is None else whole_visible[:, state.length :]
    if state.visible is None and (not isinstance(visible, Tensor) or bool(visible.all())):
        return Padding()
    everything = torch.ones(state.batch, state.length + ids.shape[1], dtype=torch.bool, device=ids.device)
    before = everything[:, : state.length] if state.visible is None else state.visible
    now = visible if isinstance(visible, Tensor) else everything[:, state.length :]
    return Padding(visible=torch.cat([before, now], 1))
