"""What is noted of an example besides its tensors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from autopar.frontend.torch.step.batch import call_arguments
from autopar.ir.leaves import (
    any_of,
    call_leaves,
    is_array,
    is_scalar_of_a_library,
    label_of_path,
    leaves,
    recorded,
)
from autopar.ir.program import Arg, Example

Plain = dict[str, Arg]


def example_of(model: nn.Module, inputs: Any, trains: bool) -> Example:
    """Returns what is noted of the batch of a training step, or else of the inputs of a model."""
    if trains:
        return Example(tuple(_plain(leaves(inputs)).items()))
    return _example_of_call(model, inputs)


def without(example: Example, free: Mapping[str, type]) -> Example:
    """Returns an example of which some values don't count, but for their types.

    Args:
        example: The example.
        free: The types of these values, by label.
    """
    given = ((name, any_of(free[name]) if name in free else value) for name, value in example.given)
    return replace(example, given=tuple(given))


def _example_of_call(model: nn.Module, inputs: Any) -> Example:
    """Returns what is noted of the inputs of a model, whose `forward` has defaults for others."""
    args, kwargs = call_arguments(inputs)
    parameters = inspect.signature(model.forward).parameters.values()
    arguments = tuple(_positional(parameters))
    given = _plain(call_leaves(args, kwargs, arguments))
    tensors = {path[0] for path, leaf in call_leaves(args, kwargs, arguments) if is_array(leaf)}
    defaults = {
        each.name: recorded(each.default)
        for each in parameters
        if each.default is not each.empty
        and not is_array(each.default)
        and each.name not in tensors
        and repr(given.get(each.name, recorded(each.default))) == repr(recorded(each.default))
    }
    given = {label: value for label, value in given.items() if label not in defaults}
    noted = arguments if given or defaults else ()
    return Example(tuple(given.items()), tuple(defaults.items()), noted)


def _plain(found: Iterator[tuple[Any, Any]]) -> Plain:
    return {
        label_of_path(path): recorded(leaf)
        for path, leaf in found
        if not is_array(leaf) or is_scalar_of_a_library(leaf)
    }


def _positional(parameters: Any) -> Iterator[str]:
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            yield f"*{each.name}"
        elif each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            yield each.name
