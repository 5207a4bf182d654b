"""Fixtures that force what a small model on this machine would not meet: other devices and processors, small limits, kernels
for large products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tfkit.comparison import runner
from tfkit.cpu import int8, products, small_batch
from tfkit.data import TextTokeniser


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """`gpu(True)`: torch finds an NVIDIA X; `gpu(False)`: it finds no device."""

    def find(there: bool) -> None:
        for name, answer in (("is_available", there), ("get_device_name", "NVIDIA X")):
            monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)

    return find


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """`processor(vendor, capability)`: this process runs on one thread of such a processor, and torch has MKL."""

    def have(vendor: str, capability: str) -> None:
        for owner, name, answer in (
            (products, "vendor", vendor),
            (small_batch, "vendor", vendor),
            (torch.backends.cpu, "get_cpu_capability", capability),
            (torch.backends.mkl, "is_available", True),
            (torch, "get_num_threads", 1),
        ):
            monkeypatch.setattr(owner, name, lambda answer=answer: answer)

    return have


@pytest.fixture
def onednn_products(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Every product of training goes to oneDNN where torch has it, on any processor; gives the shapes of what is multiplied."""
    product = products.probe()
    if product is None:
        pytest.skip("torch was built without oneDNN")
    shapes: list[torch.Size] = []

    def noted(*given: Any) -> torch.Tensor:
        shapes.append(given[0].shape)
        return product(*given)

    for name, value in (("PRODUCT", noted), ("MIN_TRAINING_WORK", 1)):
        monkeypatch.setattr(products, name, value)
    return shapes


@pytest.fixture
def small_weights_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of any size become int8 or bfloat16."""
    monkeypatch.setattr(int8, "MIN_ELEMENTS", 1)


@pytest.fixture
def most_shapes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`most_shapes(3)`: batches are padded to at most so many shapes."""
    return lambda count: monkeypatch.setattr("tfkit.data.batch_shapes.MAX_SHAPES", count)


@pytest.fixture
def chunked_from(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`chunked_from(1)`: the loss is computed in chunks from so many logits on."""
    return lambda logits: monkeypatch.setattr("tfkit.train.loss.MIN_LOGITS", logits)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`decoded("a", "b")`: tokenisers decode ids to these texts, one after the other, and to the last from then on."""

    def decode(*texts: str) -> None:
        left = list(texts)
        monkeypatch.setattr(TextTokeniser, "decode", lambda self, ids: left.pop(0) if len(left) > 1 else left[0])

    return decode


@pytest.fixture
def trained_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., str]], None]:
    """`trained_by(train)`: the runs of a comparison train in this process, one after another, by `train(job)`."""
    return lambda train: monkeypatch.setattr(runner.Workers, "train", lambda workers, job: train(job))
