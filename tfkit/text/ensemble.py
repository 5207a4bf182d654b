"""Several models that translate together: at every step the searches see one distribution over the next token.

probabilities       log p(y) = log (1 / N) sum_i p_i(y)              fairseq's rule
log_probabilities   log p(y) = (1 / N) sum_i log p_i(y) - log Z      that of OpenNMT-py and Marian, normalised
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..data import Roles, TextTokeniser, roles_for
from ..errors import Diagnostic, InputError
from ..nn.model import Model
from ..nn.model_plan import ModelPlan
from ..nn.outputs import Outputs
from ..nn.runtime.decoding_state import DecodingState

Averaging = Literal["probabilities", "log_probabilities"]
AVERAGING = ("probabilities", "log_probabilities")


@dataclass(frozen=True)
class EnsembleState:
    """The decoding states of the models of an ensemble, whose rows are the same."""

    states: tuple[DecodingState, ...]

    @property
    def batch(self) -> int:
        return self.states[0].batch

    @property
    def visible(self) -> Tensor | None:
        return self.states[0].visible

    def reorder(self, rows: Tensor) -> None:
        for state in self.states:
            state.reorder(rows)


class Ensemble:
    """What searches use of a `Model`, computed by several, with the vocabularies and the special ids of the first one.
    Attention weights are those of the first model. Raises InputError if a model is of another kind, or has other vocabularies
    or special ids; or if there is no model."""

    def __init__(self, models: Sequence[Model], averaging: Averaging = "probabilities") -> None:
        if not models:
            raise InputError(Diagnostic("TFK078", "an ensemble has no model", "give at least one"))
        if averaging not in AVERAGING:
            fix = f"it is one of {', '.join(AVERAGING)}"
            raise InputError(Diagnostic("TFK078", f"an ensemble averages {averaging!r}", fix))
        self.models, self.averaging, self.first = tuple(models), averaging, models[0]
        self.roles = tuple(roles_for(model.plan, "parallel") for model in models)
        for number, (model, roles) in enumerate(zip(models, self.roles, strict=True), 1):
            for column in ("source", "target"):
                mine, first = model.plan.token_rule(roles.of(column)), self.first.plan.token_rule(self.roles[0].of(column))
                for name in ("vocab_size", "start_id", "end_id", "pad_id"):
                    if getattr(mine, name) != getattr(first, name):
                        message = f"model {number} of the ensemble has {name} {getattr(mine, name)} at its {column}"
                        fix = f"it must be {getattr(first, name)}, as in the first model"
                        raise InputError(Diagnostic("TFK106", message, fix))
        devices = {model.device for model in models}
        if len(devices) > 1:
            message = f"the models of the ensemble are on {' and '.join(sorted(map(str, devices)))}"
            raise InputError(Diagnostic("TFK078", message, "move them to one device"))
        self.beam_top_k, self.float32_kernels = self.first.beam_top_k, self.first.float32_kernels
        self.backends, self.memory_sites = self.first.backends, self.first.memory_sites
        self.attention_sites = self.first.attention_sites

    @property
    def plan(self) -> ModelPlan:
        """The plan of the first model, with the positions that all models have."""
        limits = dict(self.first.plan.max_input_lengths)
        for model, roles in zip(self.models, self.roles, strict=True):
            for column in ("source", "target"):
                limit, name = model.plan.max_input_lengths.get(roles.of(column)), self.roles[0].of(column)
                if limit is not None:
                    limits[name] = min(limit, limits.get(name, limit))
        return replace(self.first.plan, max_input_lengths=limits)

    @property
    def device(self) -> torch.device:
        return self.first.device

    @property
    def training(self) -> bool:
        return any(model.training for model in self.models)

    def modules(self) -> Iterator[nn.Module]:
        return chain.from_iterable(model.modules() for model in self.models)

    def eval(self) -> Ensemble:
        return self.train(False)

    def train(self, mode: bool = True) -> Ensemble:
        for model in self.models:
            model.train(mode)
        return self

    def not_thread_safe(self, device: str) -> list[str]:
        """As `Model.not_thread_safe`, of all models."""
        return sorted({name for model in self.models for name in model.not_thread_safe(device)})

    def start(
        self, target: str, /, *, masks: Mapping[str, Tensor] | None = None, lengths: Mapping[str, Tensor] | None = None,
        **inputs: Any,
    ) -> EnsembleState:  # fmt: skip
        """As `Model.start`, with the names of the first model."""

        def renamed(by_name: Mapping[str, Any], roles: Roles) -> dict[str, Any]:
            columns = {self.roles[0].of(column): roles.of(column) for column in ("source", "target")}
            return {columns.get(name, name): value for name, value in by_name.items()}

        return EnsembleState(
            tuple(
                model.start(
                    roles.target, masks=None if masks is None else renamed(masks, roles),
                    lengths=None if lengths is None else renamed(lengths, roles), **renamed(inputs, roles),
                )
                for model, roles in zip(self.models, self.roles, strict=True)
            )
        )  # fmt: skip

    def step(
        self, state: EnsembleState, ids: Tensor, visible: Tensor | Literal[True] | None = None, weights: Iterable[str] = ()
    ) -> Outputs:
        """As `Model.step`; the logits are the log-probabilities of the ensemble."""
        outputs, total = Outputs(), None
        for number, (model, roles, of_decoding) in enumerate(zip(self.models, self.roles, state.states, strict=True)):
            of_model = model.step(of_decoding, ids, visible, weights if number == 0 else ())
            outputs = outputs if number else of_model
            logits = of_model[roles.output]
            log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
            if total is None:
                total = log_probs
            elif self.averaging == "probabilities":
                total = torch.logaddexp(total, log_probs)
            else:
                total = total + log_probs
        assert total is not None, "there is a model"
        count = len(self.models)
        outputs[self.roles[0].output] = (
            total - math.log(count) if self.averaging == "probabilities" else (total / count).log_softmax(-1)
        )
        return outputs

    def restrict(self, state: EnsembleState, output: str, ids: Tensor) -> None:
        """As `Model.restrict`, with the output of the first model."""
        for model, roles, of_decoding in zip(self.models, self.roles, state.states, strict=True):
            model.restrict(of_decoding, roles.output, ids)

    def branch(self, state: EnsembleState, rows: Tensor, beams: int, kept: Tensor | None = None) -> None:
        """As `Model.branch`."""
        for model, of_decoding in zip(self.models, state.states, strict=True):
            model.branch(of_decoding, rows, beams, kept)


def check_same_tokenisers(places: Sequence[Any], tokenisers: Sequence[Mapping[str, TextTokeniser]]) -> None:
    """Raises InputError unless all models of an ensemble have the tokenisers of the first one."""
    for place, by_column in zip(places, tokenisers, strict=True):
        for column in ("source", "target"):
            if by_column[column].digest != tokenisers[0][column].digest:
                message = f"{place} has another tokeniser of the {column} than {places[0]}, so their ids are other texts"
                fix = "take models that were trained with one tokeniser: `--from RUN`, or other seeds of one recipe"
                raise InputError(Diagnostic("TFK106", message, fix))
