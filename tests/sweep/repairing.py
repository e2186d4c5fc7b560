"""Mends inputs by what a model says of them: sizes that it expects, and those that it got."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import Tensor
from transformers import PretrainedConfig

from tests.sweep.inputs import BATCH, Form, size, text_config

_SIZES = (
    r"expected input\[[\d, ]+\] to have (?P<wanted>\d+) channels, but got (?P<got>\d+) channels",
    r"shapes cannot be multiplied \(\d+x(?P<got>\d+) and (?P<wanted>\d+)x\d+\)",
    r"expected input with shape \[\*, (?P<wanted>\d+)\], but got input of size\[.*?(?P<got>\d+)\]",
    r"size of tensor a \((?P<got>\d+)\) must match the size of tensor b \((?P<wanted>\d+)\)",
    r"size of tensor a \((?P<wanted>\d+)\) must match the size of tensor b \((?P<got>\d+)\)",
)
"""What is said of the size of a dimension."""


def repaired(
    form: Form, config: PretrainedConfig, batch: Mapping[str, Tensor], error: Exception
) -> Iterator[Form]:
    """Returns forms that mend what a model says is wrong with a batch.

    Args:
        form: Of the batch.
        config: The model's.
        batch: What the model refused.
        error: How it did.
    """
    told = str(error)
    yield from _with_placeholders(form, config, told)
    if "must be mono" in told and "input_values" in batch:
        mono = (BATCH, 1, form.samples)
        yield replace(form, shapes=(*form.shapes, ("input_values", mono)))
    if "attn_mask dtype" in told and not form.truths:
        yield replace(form, truths=True)
    step = re.search(r"multiple of `?(\d+)", told)
    if step is not None and form.samples % int(step[1]):
        yield replace(form, samples=-(-form.samples // int(step[1])) * int(step[1]))
    for pattern in _SIZES:
        found = re.search(pattern, told)
        if found is not None:
            yield from _resized(form, batch, int(found["got"]), int(found["wanted"]))


def _resized(form: Form, batch: Mapping[str, Tensor], got: int, wanted: int) -> Iterator[Form]:
    """Returns forms in which a dimension of an input of floats has another size."""
    for name, tensor in batch.items():
        shape = tuple(tensor.shape)
        if tensor.is_floating_point() and wanted == 1 and tensor.ndim == 2 and shape[0] == got:
            yield replace(form, shapes=(*form.shapes, (name, (got, 1, shape[1]))))
        for at in range(tensor.ndim - 1, 0, -1):
            if tensor.is_floating_point() and shape[at] == got and wanted < 10_000:
                resized = (*shape[:at], wanted, *shape[at + 1 :])
                yield replace(form, shapes=(*form.shapes, (name, resized)))


def _with_placeholders(form: Form, config: PretrainedConfig, told: str) -> Iterator[Form]:
    """Returns forms with as many tokens for an image as a model says that it makes features."""
    found = re.search(r"features:? (\d+)", told)
    if found is None or form.text:
        return
    width = size(text_config(config), ("hidden_size", "d_model"), 1)
    for count in (int(found[1]) // BATCH // width, int(found[1]) // BATCH):
        if 0 < count < 200:
            yield replace(form, placeholders=count)
