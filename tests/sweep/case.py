"""What a sweep judges: a model with batches, and what of its outputs is trained and compared."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.sweep.child import Record


class Case(Protocol):
    """A model, always with the same weights, and batches for its training.

    Attributes:
        name: Of what is judged; random pins are drawn from it.
        draws: Whether a training step draws random numbers.
    """

    @property
    def name(self) -> str: ...

    @property
    def draws(self) -> bool: ...

    def model(self, dropout: bool) -> nn.Module:
        """Returns a new model in float64, with or without what drops something by default."""
        ...

    def batch(self, model: nn.Module, number: int) -> dict[str, Tensor]:
        """Returns the batch of a step, by the names of the arguments of `forward`."""
        ...

    def training(self, model: nn.Module) -> Training:
        """Returns what is trained of a model."""
        ...

    def inference(self, model: nn.Module) -> Inference:
        """Returns what is run of a model."""
        ...

    def record(self) -> Record:
        """Returns what is told of it: `built`, `rung`, `loss`, `draws`, and `parameters`."""
        ...


class Unbuilt(Exception):
    """A model couldn't be built from what is known here of its type."""


class Infinite(Unbuilt):
    """A loss isn't finite."""


class Doubled(TorchFunctionMode):
    """Takes float32 for float64, so that what a model rounds to 32 bits doesn't hide errors."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        args = tuple(_doubled(each) for each in args)
        kwargs = {name: _doubled(each) for name, each in (kwargs or {}).items()}
        return func(*args, **kwargs)


def _doubled(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


class Training(nn.Module):
    """A model that returns its loss, or one that is made up: the mean of its outputs' squares.

    Args:
        model: The model.
        options: Arguments of its forward that aren't tensors.
        masked: Whether a loss that is made up takes infinite elements of outputs for zeros.
    """

    def __init__(
        self, model: nn.Module, options: Mapping[str, Any] | None = None, masked: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.options = options or {}
        self.masked = masked

    def forward(self, **batch: Tensor) -> Tensor:
        with Doubled():
            found = call(self.model, batch, self.options)
        loss = own_loss(found)
        if loss is not None:
            return loss.mean()
        first, *rest = (self._square(each).mean() for each in floats(found))
        return sum(rest, first)

    def _square(self, output: Tensor) -> Tensor:
        return (output.masked_fill(output.isinf(), 0) if self.masked else output).square()


class Inference(nn.Module):
    """A model that returns all its outputs that are floats."""

    def __init__(self, model: nn.Module, options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.model = model
        self.options = options or {}

    def forward(self, **batch: Tensor) -> tuple[Tensor, ...]:
        with Doubled():
            return tuple(floats(call(self.model, batch, self.options)))


def call(model: nn.Module, batch: Mapping[str, Tensor], options: Mapping[str, Any]) -> Any:
    """Calls a model; a mapping becomes a dataclass, where its forward is annotated so."""
    given = arguments(batch)
    for name, hint in inspect.signature(model.forward).parameters.items():
        if dataclasses.is_dataclass(hint.annotation) and isinstance(given.get(name), dict):
            given[name] = hint.annotation(**given[name])
    return model(**given, **options)


def cloned(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a copy of a batch, for models that write to it."""
    return {name: each.clone() for name, each in batch.items()}


def arguments(batch: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns a batch in which inputs like `levels.0` and `levels.1` are a list.

    Those like `states.first` and `states.second` are a mapping.
    """
    found: dict[str, Any] = {}
    for path, each in batch.items():
        whole, dot, inner = path.partition(".")
        if dot:
            found.setdefault(whole, {})[inner] = each
        else:
            found[whole] = each
    return {name: _packed(each) for name, each in found.items()}


def _packed(parts: Any) -> Any:
    if not isinstance(parts, dict):
        return parts
    found = arguments(parts)
    return list(found.values()) if all(name.isdigit() for name in found) else found


def own_loss(found: Any) -> Tensor | None:
    """Returns the loss in an output, if there is one."""
    loss = getattr(found, "loss", None)
    return loss if isinstance(loss, Tensor) else None


def floats(found: Any) -> list[Tensor]:
    """Returns the tensors of floats in an output, each once."""
    seen = {id(each): each for each in _leaves(found) if each.is_floating_point()}
    return list(seen.values())


def _leaves(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, Mapping):
        for each in found.values():
            yield from _leaves(each)
    elif isinstance(found, list | tuple):
        for each in found:
            yield from _leaves(each)


def take_step(case: Case, model: nn.Module) -> tuple[str, bool]:
    """Takes a forward and a backward pass.

    Returns:
        Whether the loss is the model's `own` or `made up`, and whether random numbers change it.

    Raises:
        Infinite: If the loss isn't finite.
    """
    training = case.training(model.train())
    batch = case.batch(model, 0)
    torch.manual_seed(1)
    with Doubled():
        own = own_loss(call(model, cloned(batch), training.options)) is not None
    loss = _loss(training, batch, 1)
    if not loss.isfinite():
        raise Infinite(f"the loss is {loss.item()}")
    loss.backward()  # type: ignore[no-untyped-call]
    return "own" if own else "made up", is_drawn(training, batch)


def is_drawn(training: Training, batch: dict[str, Tensor]) -> bool:
    """Whether a model's loss depends on random numbers."""
    return len({_loss(training, batch, seed).item() for seed in (1, 2, 3)}) > 1


def _loss(training: Training, batch: dict[str, Tensor], seed: int) -> Tensor:
    torch.manual_seed(seed)
    found: Tensor = training(**cloned(batch))
    return found
