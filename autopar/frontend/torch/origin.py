"""Where in the user's code and model a traced op comes from: its line, and its module.

torch notes both only in export. Here a mode on the functions of torch notes the user's line before
each of them runs, and every module notes its qualified name while its `forward` runs. Ops of the
backward pass have the number of the forward op that they differentiate, and so its origin.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from autopar.base.package import PACKAGE

MODULE = "module"
"""Key of a node's `custom` notes: the qualified name of the module that computes it."""

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = str(PACKAGE) + os.sep
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))


class UserLines(TorchFunctionMode):
    """Notes the innermost line outside of torch for the ops of each function of torch."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # Of a property nothing is computed.
        frame = None if func.__name__ == "__get__" else _outside_python(sys._getframe(1))
        if frame is not None:
            code = frame.f_code
            line = f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n'
            fx_traceback.set_stack_trace([line])
        return func(*args, **(kwargs or {}))


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame that is neither torch's nor the compiler's, from a frame on.

    What a mode or a kind of tensor makes of a call isn't the line that calls.
    """
    while frame is not None:
        if is_user_code(frame.f_code.co_filename) and frame.f_code.co_name not in HANDLERS:
            return frame
        frame = frame.f_back
    return None


def _outside_python(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame of a user's that isn't of Python's own library either.

    A function of torch's that is given as the loss is called by none of the user's lines, but
    through a decorator of `contextlib`: what the user wrote is the call of the compiler.
    """
    frame = user_frame(frame)
    while frame is not None and _is_python(frame.f_code.co_filename):
        frame = user_frame(frame.f_back)
    return frame


def calling(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame, from one on, that isn't of what handles calls of others."""
    while frame is not None:
        if frame.f_code.co_name not in HANDLERS and not _is_own(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=4096)
def _is_python(path: str) -> bool:
    """Whether a file is of Python's own library; packages may be installed within its folder."""
    return path.startswith(_PYTHON) and not path.startswith(_PACKAGES)


def _is_own(path: str) -> bool:
    return path.startswith(_OWN)


HANDLERS = ("__torch_function__", "__torch_dispatch__")
"""Functions by which modes and kinds of tensors handle calls of others."""

_PROMPTS = ("<stdin", "<python-input", "<ipython-input")
"""How names of files begin that stand for what is typed at a prompt."""


@functools.lru_cache(maxsize=4096)
def is_user_code(path: str) -> bool:
    """Whether a file is neither torch's nor the compiler's."""
    return path.startswith(_PROMPTS) or not path.startswith((_TORCH, _OWN, "<"))


def place_of(frame: FrameType | None) -> str:
    """Returns the line of a frame, as texts name it."""
    return "the model" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextmanager
def named_modules(module: nn.Module, skip: str = "") -> Iterator[None]:
    """Lets every submodule note its qualified name while its `forward` runs.

    Args:
        module: The root, whose submodules are changed for the time of the context.
        skip: A prefix of names that is left out of them.
    """
    wrapped = []
    for name, child in module.named_modules():
        name = name.removeprefix(skip).removeprefix(".")
        if name:
            child.forward = _noting(child.forward, name)
            wrapped.append(child)
    try:
        yield
    finally:
        for child in wrapped:
            del child.forward


def _noting(forward: Any, name: str) -> Any:
    @functools.wraps(forward)
    def noting(*args: Any, **kwargs: Any) -> Any:
        with fx_traceback.annotate({MODULE: name}):
            return forward(*args, **kwargs)

    return noting


def module_of(node: fx.Node) -> str:
    """Returns the qualified name of the module that computes a node; "" for none."""
    return str((node.meta.get("custom") or {}).get(MODULE, ""))


def spread_origins(graph: fx.Graph) -> None:
    """Gives the nodes of the backward pass the lines and modules of what they differentiate."""
    origins: dict[int, fx.Node] = {}
    for node in graph.nodes:
        number = node.meta.get("seq_nr")
        if number is None or node.op != "call_function":
            continue
        if not is_backward(node):
            origins[number] = node
        elif number in origins:
            source = origins[number].meta
            for key in ("stack_trace", "custom"):
                if key in source:
                    node.meta[key] = source[key]
                else:
                    node.meta.pop(key, None)


def is_backward(node: fx.Node) -> bool:
    """Whether a node of a joint graph belongs to the backward pass."""
    return node.meta.get("partitioner_tag") == "is_backward"
