"""One step of the optimiser: forward, backward, clip, schedule, update.

The gradient of a step is that of the mean loss over all target tokens of its batches, independent of how these are split: the
summed loss of each batch is divided by the token count of the whole step before the backward pass. Several processes share the
batches of a step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from ..data import NO_LABEL, Batch, Data, ImageTask, Task, image_task, roles_of, task_of
from ..errors import Diagnostic, TrainingError
from ..io.alignment_site import AlignmentSite
from ..nn.model import Model
from ..nn.patches import Patches
from ..recipe import Recipe, rows_with_links
from ..slots.node import ImageRule
from ..text.alignment import check_keys
from .batches import TrainingBatches
from .callbacks import Progress, Step
from .captured import CapturedPasses, CapturedUpdate, check_captured
from .compiled import CompiledModel
from .distributed.ddp_fsdp import full_tensor, gradient_sync, replicated
from .distributed.process_group import ProcessGroup
from .fit_spec import alignment_in, guided_alignment
from .loss import LossSums, alignment_loss, labelled_rows, losses_in_chunks, smoothed_cross_entropy
from .optimiser import set_rate
from .scheduled_sampling import ScheduledSampling
from .train_state import DTYPES, TrainState


class NotFinite(Exception):
    """The loss of a step, or its gradient norm, is NaN or infinite; `batches` are the numbers of its batches."""

    def __init__(self, step: int, what: str, batches: range) -> None:
        super().__init__(f"{what} of step {step} is NaN or infinite")
        self.step, self.batches = step, batches


def _tensors(batch: Batch) -> dict[str, Tensor]:
    """The inputs, segments and labels of a batch by name."""
    segments = {f"{name}.segments": ids for name, ids in batch.segments.items()}
    others = {f"{name}.labels": labels for name, labels in batch.other_labels.items()}
    return {**batch.inputs, **segments, "labels": batch.labels, **others}


def report_not_finite(
    error: NotFinite, batches: Sequence[Batch], directory: Path, checkpoint: Path | None, has_best: bool
) -> NoReturn:
    """Write the batches of the step into the directory of the run, and raise TrainingError. `checkpoint` is the one before the
    step, None if it could not be written; `has_best`: the run has saved a model, from which a new run could start."""
    path = directory / f"not-finite-step-{error.step}.safetensors"
    tensors = {
        f"{number}/{name}": tensor.cpu().contiguous()
        for number, batch in enumerate(batches)
        for name, tensor in _tensors(batch).items()
    }
    try:
        save_file(tensors, path)
        where = f"its batches are in {path}"
    except (OSError, SafetensorError) as reason:
        where = f"its batches could not be written ({reason})"
    if checkpoint is not None:
        where += f", the state before it in {checkpoint}"
    best = f", from the best model so far (--from {directory})" if has_best else ""
    fix = f"start a new run with a lower learning rate, with `clip_norm`, or in float32{best}"
    raise TrainingError(Diagnostic("TFK110", f"{error}; {where}", fix)) from None


@dataclass(frozen=True)
class Unread:
    """A step whose numbers are not read yet: `batches` and `start` of the step, the fields of `Step` that are known, and what
    gives the summed losses, the norm of the gradient and the loss scale. `late` if an update was recorded, and so launched
    whatever the numbers are."""

    batches: range
    start: float
    known: dict[str, Any]
    numbers: Callable[[], list[float]]
    late: bool


MIN_LOSS_SCALE = 2.0**-10
"""The smallest loss scale. If it still gives infinite float16 gradients, the loss scale is not the cause."""


class TrainStep:
    """Computes the steps of a run, and changes its model in place. The processes share the batches of a step; with `fsdp` each
    has a shard of every weight."""

    def __init__(
        self, model: Model, recipe: Recipe, data: Data, processes: ProcessGroup | None = None, fsdp: bool = False
    ) -> None:
        self.model, self.recipe, self.data, self.processes = model, recipe, data, processes or ProcessGroup()
        self.roles = roles = roles_of(model.plan, recipe.data.kind)
        rule = model.plan.inputs[roles.target]
        if isinstance(rule, ImageRule):
            self.task: ImageTask | Task = image_task(recipe, roles, rule)
        else:
            self.task = task_of(recipe, roles, data.tokenisers)
        self.alignment = alignment_in(recipe, model, roles)
        if self.alignment is not None and rows_with_links(recipe).train:
            for use in model.attention_sites():
                use.attention.learns_weights |= use.site == self.alignment.site
        self.sampling = ScheduledSampling(model, recipe, roles) if recipe.teacher_forcing is not None else None
        self.state = TrainState(model, recipe, self.processes, fsdp)
        self.batches = TrainingBatches(recipe, data, self.task, next(model.parameters()).device)
        owner: Any = model.nodes[model.plan.wires[roles.target].owner or roles.target]
        self.width: int = owner.width if isinstance(owner, Patches) else owner.embedding.weight.shape[1]
        self.compiled = CompiledModel(model, self.batches.shape_count) if recipe.compile else None
        self._runner: nn.Module = model if self.compiled is None else self.compiled.module
        self.captured: CapturedPasses | None = None
        self.notices: list[Diagnostic] = []
        """What the user has to know; the trainer says it after the step, and empties the list."""
        self.captured_update: CapturedUpdate | None = None
        self._unread: Unread | None = None
        self._last_read, self._made = 0.0, False
        self.factor = torch.ones((), device=self.batches.device)
        """Of the loss of a recorded pass."""
        linked = self.alignment is not None and bool(rows_with_links(recipe).train)
        recorded, reasons = check_captured(recipe, self.batches.device, len(roles.outputs), linked, self.processes.count)
        self.notices += reasons
        if recorded:
            self.captured = CapturedPasses(model, self._pass, self.notices, bool(recipe.cuda_graphs))
            if self.captured is not None and self.state.optimiser.defaults.get("fused"):
                self.captured_update = CapturedUpdate(self.state, self._clipped)
        if self.processes.count > 1 and not fsdp:
            self._runner = replicated(self._runner, self._has_unused_parameters())

    @property
    def progress(self) -> Progress:
        return self.state.progress

    def next_batches(self) -> range:
        """The numbers of the batches of the next step, perhaps fewer at the end of an epoch. Moves `progress` past them."""
        first = self.progress.batch
        self.progress.batch = min(first + self.recipe.batching.accumulate, self.batches.count(self.progress.epoch))
        return range(first, self.progress.batch)

    def batch(self, number: int) -> Batch:
        """A batch of the current epoch."""
        return self.batches.batch(self.progress.epoch, number)

    @property
    def epoch_complete(self) -> bool:
        return self.progress.batch >= self.batches.count(self.progress.epoch)

    def run(self) -> Step | None:
        """Make one step, and read its numbers. Returns and raises as `read`."""
        self.launch(lambda step: None)
        return self.read()

    def launch(self, report: Callable[[Step | None], object]) -> None:
        """Make one step. With `cuda_graphs` the device may still work at it afterwards. `report` gets the step before, as
        `read` returns it, while the device computes the gradient of this one. Raises NotFinite as `read`, of this step or the
        one before."""
        start, processes = time.perf_counter(), self.processes
        numbers = self.next_batches()
        local_batches = {at: self.batch(at) for at in numbers[processes.rank :: processes.count]}
        source, target = map(
            int,
            processes.sum(
                sum(batch.source_tokens for batch in local_batches.values()),
                sum(batch.target_tokens for batch in local_batches.values()),
            ),
        )
        self.model.train()
        if self.captured_update is None or self.captured_update.recorded is None:  # a recorded update leaves zeros
            self.state.optimiser.zero_grad(set_to_none=self.captured is None)  # a replay adds to the tensors of its recording
        sums = self._backward(numbers, local_batches, target, self._weights(local_batches, target))
        report(self.read())
        progress, number = self.progress, self.progress.step + 1
        rate = set_rate(self.state.optimiser, self.recipe, number, self.width, progress.reductions)
        update = self._recorded_update()
        if update is not None:
            values = update(torch.stack(sums))
        else:
            totals = processes.sum(*map(float, sums))
            if not math.isfinite(totals[0]):
                raise NotFinite(number, "the loss", numbers)
            norm = self._clip(number, numbers)
            if not self._update(number, numbers):
                return
            values, self._made = partial(list, (*totals, norm, 1.0)), True
        self._count(1, source, target)
        known = {"step": number, "epoch": progress.epoch, "rate": rate, "source_tokens": source, "target_tokens": target}
        self._unread = Unread(numbers, start, known, values, late=update is not None)

    @property
    def late(self) -> bool:
        """Whether the numbers of the last step can wait until the next one computes. Scheduled sampling needs them before."""
        return self._unread is not None and self._unread.late and self.sampling is None

    def read(self) -> Step | None:
        """Read the numbers of the last step. None if they were read, or if float16 gradients overflowed: then only the loss
        scale and the position in the data changed. Raises NotFinite if the loss or the gradient is NaN or infinite: then only
        the position in the data changed."""
        step, self._unread = self._unread, None
        if step is None:
            return None
        *sums, norm, scale = step.numbers()
        number, source, target = (step.known[name] for name in ("step", "source_tokens", "target_tokens"))
        loss, nll = (total / target for total in sums)
        if step.late and not math.isfinite(loss + norm):
            self._count(-1, -source, -target)
            if self.state.average is not None:
                self.state.average.step -= 1
            if not math.isfinite(loss):
                raise NotFinite(number, "the loss", step.batches)
            if not self.state.scaler.is_enabled():
                raise NotFinite(number, "the norm of the gradient", step.batches)
            if scale < MIN_LOSS_SCALE:
                raise NotFinite(number, f"with the loss scale {scale:g} the gradient", step.batches)
            return None
        start, self._last_read = max(step.start, self._last_read), time.perf_counter()
        return Step(loss=loss, nll=nll, norm=norm, seconds=self._last_read - start, **step.known)

    def _recorded_update(self) -> CapturedUpdate | None:
        """The recorded update; None before the first ordinary one, which makes the state of the optimiser."""
        if self.captured_update is None or not self._made:
            return None
        try:
            self.captured_update.record()
        except TrainingError as error:
            if self.recipe.cuda_graphs:
                raise
            self.notices += error.diagnostics
            self.captured_update = None
        return self.captured_update

    def _count(self, steps: int, source: int, target: int) -> None:
        self.progress.step += steps
        self.progress.source_tokens += source
        self.progress.target_tokens += target

    def _weights(self, local_batches: Mapping[int, Batch], target_tokens: int) -> dict[str, float]:
        """The factor of the summed loss of every output. The loss of a step is divided by the labels of the first output, so
        the factors of the others hold the ratio of their numbers of labels."""
        first, *others = self.roles.outputs
        labels = [sum(int((batch.other_labels[name] != NO_LABEL).sum()) for batch in local_batches.values()) for name in others]
        counts = self.processes.sum(*labels) if others else ()
        weight = self.recipe.loss.weight
        ratios = {name: weight(name) * target_tokens / count for name, count in zip(others, counts, strict=True)}
        return {first: weight(first), **ratios}

    def _backward(
        self, numbers: range, local_batches: Mapping[int, Batch], target_tokens: int, weights: Mapping[str, float]
    ) -> list[Tensor]:
        """Accumulate the gradient of a step; returns the sums of loss and nll over the batches of this process.

        Every process runs the same number of backward passes, because all gather weights and reduce gradients together. A
        process without a further batch repeats another one with weight 0.
        """
        processes = self.processes
        rounds = -(-len(numbers) // processes.count)
        turns = [*local_batches, *([numbers[0]] * (rounds - len(local_batches)))]
        sums: list[LossSums] = []
        for turn, number in enumerate(turns):
            batch, counts = local_batches.get(number) or self.batch(number), turn < len(local_batches)
            if self.sampling is not None:
                with self._autocast():
                    batch = self.sampling.batch(batch, self.progress.step + 1, self.progress.epoch, number)
            if self.captured is not None:
                self.factor.fill_(1 / target_tokens)
                sums.append(LossSums(*self.captured(batch, self.batches.seed(self.progress.epoch, number))))
                continue
            torch.manual_seed(self.batches.seed(self.progress.epoch, number))
            with gradient_sync(self._runner, turn == rounds - 1):
                loss, nll = self._losses(self._runner, batch, weights)
                self.state.scaler.scale(loss * (counts / target_tokens)).backward()  # type: ignore[no-untyped-call]
            if counts:
                sums.append(LossSums(loss.detach(), nll))
        if processes.count > 1:  # DDP and FSDP2 average over processes; scaling the loss instead could overflow float16
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            torch._foreach_mul_(gradients, float(processes.count))
        zero = torch.zeros((), device=self.batches.device)
        return [torch.stack(column).sum() for column in zip(*sums, strict=True)] or [zero, zero]

    @torch.enable_grad()
    def _pass(self, batch: Batch) -> Tensor:
        """Add `factor` times the gradient of the loss of a batch to the gradients; returns its summed loss and nll."""
        loss, nll = self._losses(self._runner, batch, {self.roles.output: self.recipe.loss.weight(self.roles.output)})
        self.state.scaler.scale(loss * self.factor).backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach(), nll])

    def _clipped(self) -> Tensor:
        """Clip the gradient to `clip_norm`; returns its norm before that."""
        self.state.scaler.unscale_(self.state.optimiser)
        limit, parameters = self.recipe.clip_norm, list(self.model.parameters())
        if limit is not None:
            return full_tensor(torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=True))
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return full_tensor(torch.nn.utils.get_total_norm(gradients, foreach=True))

    def _clip(self, step: int, numbers: range) -> float:
        """Clip the gradient as `_clipped`, if its norm is finite."""
        norm = float(self._clipped())
        if not self.state.scaler.is_enabled() and not math.isfinite(norm):
            raise NotFinite(step, "the norm of the gradient", numbers)
        return norm

    def _update(self, step: int, numbers: range) -> bool:
        """Update the weights and their moving average; returns False if the scaler skipped the step."""
        scaler = self.state.scaler
        scale = scaler.get_scale()
        scaler.step(self.state.optimiser)
        scaler.update()
        if scaler.get_scale() < scale:
            if scale < MIN_LOSS_SCALE:
                raise NotFinite(step, f"with the loss scale {scale:g} the gradient", numbers)
            return False
        if self.state.average is not None:
            self.state.average.update(self.model, self.state.average.next_share())
        return True

    def _losses(self, model: nn.Module, batch: Batch, weights: Mapping[str, float]) -> LossSums:
        """The losses of a batch: sums over its labels, times the weight of each output, added."""
        by_output = {self.roles.output: batch.labels, **batch.other_labels}
        if self.recipe.few_shapes:
            with self._autocast(), self.compiled.compiling(batch) if self.compiled is not None else nullcontext():
                outputs = model(**batch.arguments)
        else:
            with (
                self._autocast(),
                losses_in_chunks(self.model, by_output, self.recipe, NO_LABEL) as others,
                labelled_rows(self.model.nodes, others) as by_output,
            ):
                outputs = model(**batch.arguments, **({} if batch.links is None else {"weights": (self._guided.site,)}))
        options = self.recipe.loss
        total: LossSums | None = None
        for name in self.roles.outputs:
            if name in by_output:
                logits = self.model.plan.label_rows(name, outputs[name])
                sums = smoothed_cross_entropy(logits, by_output[name], options.label_smoothing, options.smoothing, NO_LABEL)
            else:
                loss, nll = outputs[name]
                sums = LossSums(loss, nll.detach())
            weighted = LossSums(sums.loss * weights[name], sums.nll * weights[name])
            total = weighted if total is None else LossSums(total.loss + weighted.loss, total.nll + weighted.nll)
        assert total is not None, "there is an output"
        if batch.links is not None:
            attention = outputs["weights"][self._guided.site]
            check_keys(self._guided.site, attention.shape[3], int(batch.inputs[self.roles.of("source")].shape[1]))
            guided = alignment_loss(attention, batch.links, self._guided.head or 0)
            total = LossSums(total.loss + guided_alignment(self.recipe).weight * guided, total.nll)
        return total

    @property
    def _guided(self) -> AlignmentSite:
        """The head that learns to align."""
        assert self.alignment is not None, "there are links"
        return self.alignment

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = DTYPES.get(self.recipe.precision)
        return torch.autocast(self.batches.device.type, dtype) if dtype is not None else nullcontext()

    def _has_unused_parameters(self) -> bool:
        """Whether the loss does not depend on some parameter. DDP needs this setting."""
        batch = self.task.batch(self.data.train, [0], np.random.default_rng(0)).to(self.batches.device)
        loss, _ = self._losses(self.model.eval(), batch, dict.fromkeys(self.roles.outputs, 1.0))
        loss.backward()  # type: ignore[no-untyped-call]
        unused = any(parameter.requires_grad and parameter.grad is None for parameter in self.model.parameters())
        self.model.zero_grad(set_to_none=True)
        return unused

    @torch.no_grad()
    def try_longest(self) -> None:
        """Run the longest rows once, so that a lack of memory is reported before the training starts."""
        for batch in self.batches.longest_rows():
            with self._autocast():
                self.model.eval()(**batch.arguments)
