"""Scheduled sampling: some input tokens of a decoder are the model's own predictions.

    x'_t = x_t with probability `ratio`, else argmax p(. | x'_<t)     Bengio et al. 2015, for a recurrent decoder: step by step
    x'_t = x_t with probability `ratio`, else argmax p(. | x_<t)      Mihaylova and Martins 2019, for a Transformer: two passes

With `predicted: drawn` the token is drawn from p, as in Bengio et al. The predictions are made without gradient and without
dropout. The usual forward pass then reads x'; the labels stay. A token passes no gradient, so this gradient is that of one loop
over the steps. The first token of a row, which nothing predicts, and
padding stay; padding is never predicted.

https://arxiv.org/abs/1506.03099, https://arxiv.org/abs/1906.07651
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Batch, Roles
from ..nn.evaluating import evaluating
from ..nn.model import Model
from ..nn.recurrent import Recurrent
from ..recipe import Recipe

STREAM = 1
"""Separates the draws of x' from others of the same batch."""


def is_stepwise(model: Model, roles: Roles) -> bool:
    """Whether a recurrent decoder predicts the tokens, one after another."""
    return any(isinstance(model.nodes[name], Recurrent) for name in model.plan.followers[roles.target])


class ScheduledSampling:
    """Replaces input tokens of batches by those that the model predicts, as `teacher_forcing` of the recipe says."""

    def __init__(self, model: Model, recipe: Recipe, roles: Roles) -> None:
        assert recipe.teacher_forcing is not None
        self.model, self.roles, self.seed, self.part = model, roles, recipe.seed, recipe.teacher_forcing
        self.stepwise = is_stepwise(model, roles)
        self.pad_id = model.plan.token_rule(roles.target).pad_id

    def batch(self, batch: Batch, step: int, epoch: int, number: int) -> Batch:
        """The batch with the input tokens of a step. They depend on the weights, the step and the place in the data."""
        ratio = self.part.entry.ratio(self.part.options, step)
        if ratio >= 1.0:
            return batch
        name, reference = self.roles.target, batch.inputs[self.roles.target]
        draw = np.random.Generator(np.random.PCG64([self.seed, epoch, number, STREAM]))
        sampled = torch.from_numpy(draw.random(tuple(reference.shape)) >= ratio).to(reference.device)
        sampled &= torch.arange(reference.shape[1], device=reference.device) < batch.lengths[name][:, None]
        sampled[:, 0] = False
        uniform = None
        if self.part.options.predicted == "drawn":
            uniform = torch.from_numpy(draw.random(tuple(reference.shape))).to(reference.device)
        with evaluating(self.model):
            mixed = (self._step_by_step if self.stepwise else self._two_passes)(batch, sampled, uniform)
        return replace(batch, inputs={**batch.inputs, name: mixed})

    def _two_passes(self, batch: Batch, sampled: Tensor, uniform: Tensor | None) -> Tensor:
        reference = batch.inputs[self.roles.target]
        predicted = self._predicted(self.model(lengths=batch.lengths, **batch.inputs)[self.roles.output], uniform)
        return torch.where(sampled, torch.cat([reference[:, :1], predicted[:, :-1]], 1), reference)

    def _step_by_step(self, batch: Batch, sampled: Tensor, uniform: Tensor | None) -> Tensor:
        name, reference = self.roles.target, batch.inputs[self.roles.target]
        rest: dict[str, Any] = {node: tensor for node, tensor in batch.inputs.items() if node != name}
        lengths = {node: counts for node, counts in batch.lengths.items() if node != name}
        B, L = reference.shape
        seen = torch.arange(L, device=reference.device) < batch.lengths[name][:, None]
        state = self.model.start(name, batch=B, capacity=L, lengths=lengths, **rest)
        tokens = [reference[:, :1]]
        for t in range(L - 1):
            logits = self.model.step(state, tokens[t], seen[:, t : t + 1])[self.roles.output]
            predicted = self._predicted(logits, None if uniform is None else uniform[:, t : t + 1])
            tokens.append(torch.where(sampled[:, t + 1 : t + 2], predicted, reference[:, t + 1 : t + 2]))
        return torch.cat(tokens, 1)

    def _predicted(self, logits: Tensor, uniform: Tensor | None) -> Tensor:
        """The most probable token (B, L) of logits (B, L, V), or with uniform numbers (B, L) in [0, 1) the first one whose
        cumulative probability is larger; never padding."""
        if self.pad_id is not None:
            logits = logits.clone()
            logits[..., self.pad_id] = -torch.inf
        if uniform is None:
            return logits.argmax(-1)
        cumulative = logits.double().softmax(-1).cumsum(-1)
        return (cumulative <= uniform[..., None] * cumulative[..., -1:]).sum(-1)
