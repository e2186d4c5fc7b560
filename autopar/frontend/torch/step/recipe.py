"""What a training step consists of, as its user says, and what it computes of a batch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from autopar.base.arguments import CALLABLE, COUNT, POSITIVE, expect, one_name, one_of
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.step.batch import (
    OUTPUT,
    Path,
    batch_label,
    call_arguments,
    input_label,
    pair_label,
)

LOSS = "loss"
"""Name of the loss among what a step returns."""

AUTO, BATCH, MICROBATCH = LOSS_DENOMINATORS = ("auto", "batch", "microbatch")
"""Whose numbers terms of a loss are divided by."""

_OPTIMIZER = one_of(Optimizer, words="a torch.optim.Optimizer over the model's parameters")
_DTYPE = one_of(torch.dtype, words="a dtype, as torch.bfloat16")
_DENOMINATOR = one_name(LOSS_DENOMINATORS)
_SCALER = one_of(torch.amp.GradScaler, words="a torch.amp.GradScaler")


@dataclass(frozen=True)
class Recipe:
    """What a training step consists of.

    Attributes:
        loss: `loss(model(inputs), target)`, for batches `(inputs, target)`.
        training_step: `training_step(model, batch)`, which returns the loss; in place of `loss`.
            With neither, the model returns the loss, or something that has it as `.loss`.
        optimizer: The optimizer, over parameters of the model.
        clip_grad_norm: The largest norm of the gradients of all parameters of the optimizer
            together; None for no clipping.
        accumulate: Number of microbatches that a batch is cut into, along its first dimension.
        loss_denominator: Whose numbers terms of the loss are divided by: those of the `batch`, of
            each `microbatch`, or `auto`, of the batch where the code of the loss tells how.
        autocast: The dtype of matrix products, as `torch.autocast` has it; None for none.
        master_dtype: What trained parameters of fewer bits are stored and updated in. The model
            reads them rounded to its own dtype, and its gradients are summed in this one.
        scaler: Scales the loss as it does; its own state isn't changed.
        fetch: What a step returns besides the loss: outputs of the model, by their keys or as
            `output`; names of parameters, for their gradients; `grad_norm`.
    """

    loss: Callable[..., Tensor] | None = None
    training_step: Callable[[nn.Module, Any], Tensor] | None = None
    optimizer: Optimizer | None = None
    clip_grad_norm: float | None = None
    accumulate: int = 1
    loss_denominator: str = AUTO
    autocast: torch.dtype | None = None
    master_dtype: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None
    fetch: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        expect(CALLABLE.or_none, loss=self.loss, training_step=self.training_step)
        expect(_OPTIMIZER.or_none, optimizer=self.optimizer)
        expect(POSITIVE.or_none, clip_grad_norm=self.clip_grad_norm)
        expect(COUNT, accumulate=self.accumulate)
        expect(_DENOMINATOR, loss_denominator=self.loss_denominator)
        expect(_DTYPE.or_none, autocast=self.autocast, master_dtype=self.master_dtype)
        expect(_SCALER.or_none, scaler=self.scaler)

    @property
    def trains(self) -> bool:
        """Whether it is a training step, and not a forward pass."""
        return self.optimizer is not None

    def check(self, model: nn.Module, batch: Any) -> None:
        """Refuses options that don't fit together, or a batch that doesn't fit them.

        Raises:
            InvalidInputError: If so.
        """
        if not isinstance(model, nn.Module):
            name = model.__name__ if isinstance(model, type) else type(model).__name__
            raise InvalidInputError(f"{name} is no torch.nn.Module object; give a made model")
        if self.loss is not None and self.training_step is not None:
            raise InvalidInputError("both loss= and training_step= are given; give one")
        if not self.trains:
            for name in ("loss", "training_step", "clip_grad_norm", "master_dtype", "scaler"):
                if getattr(self, name) is not None:
                    raise InvalidInputError(f"{name}= is given without optimizer=; give both")
        if self.loss is not None:
            _check_pair(batch)
            _check_targets(self.loss, len(batch) - 1)
            _check_call(model, batch[0], "training_step= calls the model as you like")
        elif self.training_step is None:
            pair = "if they are a pair (inputs, target), give loss= too, for other batches "
            _check_call(model, batch, f"{pair}training_step=")

    def label_of(self, model: nn.Module) -> Callable[[Path], str]:
        """Returns what names the tensors of a batch."""
        if self.training_step is not None:
            return batch_label
        return (input_label if self.loss is None else pair_label)(model)

    def compute(self, model: nn.Module, batch: Any) -> Any:
        """Computes of a batch what a program returns: of a step the loss, and what may be fetched.

        Raises:
            InvalidInputError: If there is no loss.
        """
        with torch.set_grad_enabled(self.trains), self._autocast():
            if self.training_step is not None:
                return {LOSS: _loss_of(self.training_step(model, batch))}
            inputs, targets = (batch, ()) if self.loss is None else (batch[0], batch[1:])
            args, kwargs = call_arguments(inputs)
            outputs = model(*args, **kwargs)
            if not self.trains:
                return outputs
            loss = outputs if self.loss is None else self.loss(outputs, *targets)
            # A copy, as what shares memory with others of the graph would be returned with them.
            fetched = pytree.tree_map_only(Tensor, lambda each: each.detach().clone(), outputs)
            return {LOSS: _loss_of(loss), OUTPUT: fetched}

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = self.autocast
        return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def _loss_of(outputs: Any) -> Tensor:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    loss = outputs if loss is None else loss
    if not isinstance(loss, Tensor) or math.prod(loss.shape) != 1:
        found = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise InvalidInputError(
            f"a step needs a loss that is one number, this one is {found}; give loss= or"
            " training_step="
        )
    return loss.reshape(())


def _check_pair(batch: Any) -> None:
    """Refuses a batch that `loss=` can't be used with."""
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        found = f"{len(batch)} entries" if isinstance(batch, (tuple, list)) else "no pair"
        raise InvalidInputError(
            f"with loss= the example is a pair (inputs, target), this one is a"
            f" {type(batch).__name__}, {found}; for batches of another form give training_step="
        )


def _check_targets(loss: Callable[..., Tensor], count: int) -> None:
    """Refuses targets beyond the first that the loss would take for options, as weights."""
    target = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        known = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # it is written in C
        return
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in known):
        return
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [each for each in known if each.kind in positional and each.default is each.empty]
    if count > max(1, len(taken) - 1):
        raise InvalidInputError(
            f"with loss= the example is a pair (inputs, target), this one has {count + 1} entries,"
            f" and the loss needs {len(taken)} arguments; several inputs go into a tuple or dict,"
            " and for batches of another form there is training_step="
        )


def _check_call(model: nn.Module, inputs: Any, remedy: str) -> None:
    """Refuses inputs that the model's `forward` doesn't take."""
    if model._forward_pre_hooks:  # They may make other arguments of them.
        return
    args, kwargs = call_arguments(inputs)
    given = ", given by name as they are a dict" if kwargs else ""
    given = f", given one by one as they are a {type(inputs).__name__}" if args[1:] else given
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInputError(
            f"{type(model).__name__}.forward doesn't take the example inputs{given}: {error};"
            f" {remedy}"
        ) from error
