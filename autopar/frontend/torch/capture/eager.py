"""Records the ops that a module runs under autograd, one after the other: what PyTorch itself does.

`capture` makes a program that autopar can split and execute. A profile wants the ops as they are
run without any compiler, with copies, views and writes in place, and what autograd keeps for them.
So the module and its backward pass run once on fake tensors, which computes nothing, and a mode
notes each op. The result has the form of a program, but is only read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._export.utils import _compiling_state_context
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from autopar.base.errors import InvalidInputError
from autopar.frontend.quiet import quiet
from autopar.frontend.torch.capture.fake import fake_like, fake_model
from autopar.frontend.torch.capture.recorder import Recorder, Recording, is_small
from autopar.frontend.torch.refusals import DEPENDENT, DEPENDS, user_line
from autopar.frontend.torch.step.batch import call_arguments, flatten, input_label, pair_label


def record(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss: Callable[..., Tensor] | None = None,
    backward: bool = True,
    keep_outputs: bool = True,
) -> Recording:
    """Records what a module does with a batch.

    Args:
        model: The module, in the mode in which it is to be run; it may be on the meta device.
        example_inputs: The module's only input, a tuple of them, or a dict by name; with `loss`, a
            pair of that and the target.
        loss: `loss(model(inputs), target)`.
        backward: Whether gradients are computed: of the loss, of an output's `.loss`, or of all
            outputs weighted by 1.
        keep_outputs: Whether the caller holds what the module returned during the backward pass.

    Raises:
        InvalidInputError: If the module doesn't run on fake tensors.
    """
    run = (model, example_inputs, loss, backward, keep_outputs)
    try:
        with quiet():
            return _record(*run, known=True)
    except Exception:  # code that sees other tensors than fake ones may mix them with these
        try:
            with quiet(), _compiling_state_context():  # and may have ways for compilers only
                return _record(*run, known=False)
        except DEPENDENT as error:
            raise InvalidInputError(f"{user_line(error)}: {DEPENDS}") from error
        except Exception as error:
            why = (str(error).strip().splitlines() or [""])[0]
            raise InvalidInputError(
                f"{user_line(error)}: {type(model).__name__} doesn't run on fake tensors, which"
                f" have no values: {type(error).__name__}: {why}"
            ) from error


def _record(
    model: nn.Module,
    example_inputs: Any,
    loss: Callable[..., Tensor] | None,
    backward: bool,
    keep_outputs: bool,
    *,
    known: bool,
) -> Recording:
    fake = fake_model(model)
    label = input_label(model) if loss is None else pair_label(model)
    structure, tensors = flatten(example_inputs, label)
    recorder = Recorder(known)
    for stored in fake.stored.values():
        recorder.add_input(stored.fake, stored.name, stored.role)
    batch = _stand_ins(tensors, fake.mode, known)
    labels = {id(tensor): name for tensor, name in zip(batch, structure.labels, strict=True)}
    for tensor in {id(tensor): tensor for tensor in batch}.values():
        recorder.add_input(tensor, labels[id(tensor)], "input")
    with fake.mode, recorder, torch.set_grad_enabled(backward), _watched(fake.module, recorder):
        rebuilt = structure.rebuild(batch)
        inputs, target = (rebuilt, ()) if loss is None else (rebuilt[0], rebuilt[1:])
        args, kwargs = call_arguments(inputs)
        outputs = _called(fake.module, args, kwargs, recorder)
        result = outputs if loss is None else loss(outputs, *target)
        kept = list(_held_by((outputs, result), set()))
        if backward:
            recorder.phase = "backward"
            _differentiate(result, recorder)
    if keep_outputs or not backward:
        recorder.keep(kept, "activation")
    leaves = (stored.fake for stored in fake.stored.values())
    recorder.keep([leaf.grad for leaf in leaves if leaf.grad is not None], "gradient")
    return recorder.recording(type(model).__name__)


def _held_by(found: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yields the tensors that an object holds, as a cache of keys and values does, each once."""
    for leaf in pytree.tree_leaves(found):
        if id(leaf) in seen:
            continue
        seen.add(id(leaf))
        if isinstance(leaf, Tensor):
            yield leaf
        elif not isinstance(leaf, (type, ModuleType, nn.Module)):
            yield from _held_by(getattr(leaf, "__dict__", None), seen)


def _called(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recorder: Recorder
) -> Any:
    if not isinstance(module, fx.GraphModule):
        return module(*args, **kwargs)
    given = inspect.signature(module.forward).bind(*args, **kwargs)
    given.apply_defaults()
    return _NodeByNode(module, recorder).run(*given.args)


class _NodeByNode(fx.Interpreter):
    """Runs a graph and lets the recorder know which node runs."""

    def __init__(self, module: fx.GraphModule, recorder: Recorder) -> None:
        super().__init__(module)
        self.recorder = recorder

    def run_node(self, n: fx.Node) -> Any:
        """Runs a node."""
        self.recorder.node = n.name
        return super().run_node(n)


def _stand_ins(batch: Sequence[Tensor], mode: FakeTensorMode, known: bool) -> list[Tensor]:
    """Returns what stands for the tensors of a batch: fake ones, and copies of small integers.

    Code may depend on values of integers, as on whether a mask leaves anything out.

    A tensor that is given twice is one.
    """
    found: dict[int, Tensor] = {}
    for tensor in batch:
        if id(tensor) not in found:
            found[id(tensor)] = (
                tensor.clone()
                if known and not tensor.is_floating_point() and is_small(tensor)
                else fake_like(tensor.detach(), mode)
            )
    return [found[id(tensor)] for tensor in batch]


def _differentiate(result: Any, recorder: Recorder) -> None:
    found = getattr(result, "loss", None)
    found = result.get("loss") if found is None and isinstance(result, Mapping) else found
    outputs = [found] if found is not None else pytree.tree_leaves(result)
    roots = [each for each in outputs if isinstance(each, Tensor) and each.requires_grad]
    gradients = [torch.ones_like(root) for root in roots]
    torch.autograd.backward(roots, gradients)
    recorder.hold(gradients)


@contextmanager
def _watched(module: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Lets the recorder know which module runs, and what it was called with."""
    handles = []
    for name, child in module.named_modules():

        def enter(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            recorder.enter(name, pytree.tree_leaves((args, kwargs)))

        def leave(module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            recorder.leave()

        handles.append(child.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(child.register_forward_hook(leave, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
