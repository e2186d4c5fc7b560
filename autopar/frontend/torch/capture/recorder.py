"""The mode that notes each op that torch runs, and for how long who keeps which tensor."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from autopar.base.errors import UNKNOWN, Loc
from autopar.frontend.lower.spelling import IR_DTYPES
from autopar.frontend.torch.capture.fake_kernels import STAND_INS
from autopar.frontend.torch.origin import user_frame
from autopar.ir.program import Arg, DType, Function, Op, Port, Program, Ref, Signature, Value


@dataclass(frozen=True)
class Recording:
    """The ops of a forward and maybe a backward pass. Ops by their position.

    Attributes:
        program: The ops, of which those that write in place say so by their kind. Its inputs are
            parameters, buffers and the batch, its outputs what is kept: gradients, and what the
            module returned.
        until: Per op, the last one of the same step of autograd, which keeps what it reads so long.
        held: The op until after which variables of the code hold a value, and calls of modules what
            they were given.
        numbers: Per op, autograd's number of what is differentiated: the same in forward and
            backward; None if there is none.
        layers: Per op, the module, or the node of a graph, that runs or differentiates it.
    """

    program: Program
    until: tuple[int, ...]
    held: Mapping[str, int]
    numbers: tuple[int | None, ...]
    layers: tuple[str, ...]


@dataclass
class _Called:
    """A module that runs, and the values that its call holds."""

    name: str
    values: list[str] = field(default_factory=list)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each op that is run; holds no tensor itself."""

    def __init__(self, known: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known = known
        self.phase = "forward"
        self.node = ""
        self.inputs: list[str] = []
        self.outputs: dict[str, None] = {}
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.held: dict[str, int] = {}
        self.steps: list[object] = []
        self.numbers: list[int | None] = []
        self._names: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._by_storage: dict[int, str] = {}
        self._storages: list[StorageWeakRef] = []
        self._calls: list[_Called] = []
        self._forward: dict[int, Op] = {}
        self._paths: dict[int, str] = {}
        self._taken: dict[str, int] = {}
        self._keys: dict[tuple[str, int], tuple[str, int]] = {}
        self._made: dict[str, object] = {}
        self._unread: dict[int | None, dict[str, None]] = {}
        self.layers: list[str] = []

    def add_input(self, tensor: Tensor, name: str, role: str) -> None:
        name = self._unique(name)
        self.inputs.append(name)
        self._see(tensor, name, role)

    def keep(self, tensors: Sequence[Tensor], role: str) -> None:
        """Adds outputs."""
        for tensor in tensors:
            name = self._name(tensor)
            self.outputs[name] = None
            if role == "gradient":
                value = self.values[name]
                self.values[name] = Value(name, value.dtype, value.shape, role)

    def hold(self, tensors: Sequence[Tensor]) -> None:
        """Notes that somebody has held tensors until now."""
        self.held.update((self._name(each), len(self.ops) - 1) for each in tensors)

    def enter(self, name: str, leaves: Sequence[Any]) -> None:
        values = [self._name(each) for each in leaves if isinstance(each, Tensor)]
        self._calls.append(_Called(name, values))

    def leave(self) -> None:
        for name in self._calls.pop().values:
            self.held[name] = max(self.held.get(name, -1), len(self.ops) - 1)

    def recording(self, name: str) -> Recording:
        main = Function(
            "main", tuple(self.inputs), tuple(self.outputs), self.values, tuple(self.ops)
        )
        signature = Signature(
            tuple(_port(self.values[each]) for each in self.inputs),
            tuple(_port(self.values[each]) for each in self.outputs),
        )
        program = Program({"main": main}, signature, name=name)
        return Recording(
            program, _until(self.steps), self.held, tuple(self.numbers), tuple(self.layers)
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        number, step = self._place()
        given = tuple(self._arguments(func, args, kwargs))
        result = self._run(func, args, kwargs)
        found = [each for each in pytree.tree_leaves(result) if isinstance(each, Tensor)]
        if not found:
            return result
        origin = self._forward.get(number) if number is not None else None
        if self.phase == "backward" and origin is not None:
            path, loc = self._paths[number or 0], origin.loc
        else:
            path, loc = self.node or (self._calls[-1].name if self._calls else ""), _user_line()
        packet = func._schema.name.partition("::")[2]
        names = tuple(self._unique(f"{path}.{packet}" if path else packet) for _ in found)
        for tensor, name in zip(found, names, strict=True):
            self._see(tensor, name, "activation")
        kind = f"{func.namespace}.{packet}.{func._overloadname}"
        op = Op(kind, given, names, loc=loc, phase=self.phase)
        if self.phase == "forward" and number is not None and number not in self._forward:
            self._forward[number], self._paths[number] = op, path
        if self._is_accumulation(op, step):
            number, step = None, object()
        elif op.kind == "aten.detach.default" and number == self.numbers[-1]:
            step = self.steps[-1]  # Autograd keeps what an op returns, before it returns.
        self._made.update(dict.fromkeys(names, step))
        self._append(op, step, number, path)
        if self.phase == "forward":
            self._note_variables()
        elif _is_python(torch._C._current_autograd_node()):
            self._note_variables()
            self._note_returned(op, number)
        return result

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an op: on known integers for real, since code may depend on what comes out."""
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        fake = any(isinstance(each, FakeTensor) for each in tensors)
        if fake:
            return STAND_INS.get(func._schema.name, func)(*args, **kwargs)
        if not self.known or not all(map(is_small, tensors)) or self.phase != "forward":
            return func(*args, **kwargs)
        if not tensors:
            made = func(*args, **kwargs)
            if not isinstance(made, Tensor) or made.is_floating_point() or not is_small(made):
                return made
        with unset_fake_temporarily():
            return func(*args, **kwargs)

    def _is_accumulation(self, op: Op, step: object) -> bool:
        """Whether an op adds a gradient to one from elsewhere, which comes after a step's end."""
        if self.phase == "forward" or op.kind not in _ADDITIONS or len(op.operands) != 2:
            return False
        return [self._made.get(name) is step for name in op.operands].count(True) == 1

    def _note_variables(self) -> None:
        """Notes the tensors that variables of the user's code hold."""
        frame = user_frame(sys._getframe(2))
        while frame is not None:
            for found in frame.f_locals.values():
                if isinstance(found, Tensor) and found in self._names:
                    self.held[self._names[found]] = len(self.ops) - 1
            frame = user_frame(frame.f_back)

    def _note_returned(self, op: Op, number: int | None) -> None:
        """Notes that code of a step of autograd holds what it hasn't read, to return it."""
        unread = self._unread.setdefault(number, {})
        for name in op.operands:
            unread.pop(name, None)
        unread.update(dict.fromkeys(op.results))
        self.held.update(dict.fromkeys(unread, len(self.ops) - 1))

    def _place(self) -> tuple[int | None, object]:
        """Returns autograd's number of what is done, and the step of autograd that does it."""
        node = torch._C._current_autograd_node()
        if self.phase == "forward":
            number = torch._C._autograd._get_sequence_nr() - 1
            # Without gradients, what runs is a part of the op that autograd has begun, if any.
            if not torch.is_grad_enabled() and number in self._forward:
                return None, object()
            return number, object()
        if node is None:
            return None, object()
        key = (node.name(), node._sequence_nr())
        if _is_python(node):
            return key[1], object()
        return key[1], self._keys.setdefault(key, key)

    def _arguments(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[str, Arg]]:
        for at, argument in enumerate(func._schema.arguments):
            if argument.name in _LEFT_OUT:
                continue
            if at < len(args) and not argument.kwarg_only:
                value = args[at]
            elif argument.name in kwargs:
                value = kwargs[argument.name]
            else:
                continue
            if func is torch.ops.aten.lift_fresh.default and value not in self._names:
                continue  # It has just been made of a number.
            if isinstance(value, Tensor) or value != argument.default_value:
                yield argument.name, self._argument(value)

    def _argument(self, value: Any) -> Arg:
        if isinstance(value, Tensor):
            return Ref(self._name(value))
        if isinstance(value, (list, tuple)):
            return tuple(map(self._argument, value))
        if isinstance(value, torch.dtype):
            return DType(IR_DTYPES[value])
        return value if isinstance(value, (bool, int, float, complex, type(None))) else str(value)

    def _name(self, tensor: Tensor) -> str:
        """Returns the value that a tensor is; for one that autograd unpacked, a new view."""
        found = self._names.get(tensor)  # type: ignore[no-untyped-call]
        if found is not None:
            return str(found)
        root = self._by_storage.get(_storage(tensor))
        if root is None:
            self.add_input(tensor, "constant", "constant")
            return str(self._names[tensor])
        value = self.values[root]
        if tuple(tensor.shape) == value.shape and IR_DTYPES[tensor.dtype] == value.dtype:
            return root
        name = self._unique(root)
        self._see(tensor, name, "activation")
        op = Op("aten.alias.default", (("self", Ref(root)),), (name,), phase=self.phase)
        self._append(op, object(), None, "")
        return name

    def _append(self, op: Op, step: object, number: int | None, layer: str) -> None:
        self.ops.append(op)
        self.steps.append(step)
        self.numbers.append(number)
        self.layers.append(layer)

    def _see(self, tensor: Tensor, name: str, role: str) -> None:
        self.values[name] = Value(name, IR_DTYPES[tensor.dtype], tuple(tensor.shape), role)
        self._names[tensor] = name
        self._by_storage[_storage(tensor)] = name
        # As long as it is known, nothing else is where a storage was.
        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._storages.append(storage)

    def _unique(self, name: str) -> str:
        found = name
        while found in self._taken:
            found = f"{name}_{self._taken[name]}"
            self._taken[name] += 1
        self._taken[found] = 1
        return found


def is_small(tensor: Tensor) -> bool:
    """Whether a tensor of integers is known: what is computed of it is so, too."""
    return not tensor.is_meta and tensor.nbytes <= KNOWN_BYTES


_LEFT_OUT = ("device", "layout", "pin_memory", "generator")
"""Arguments that change neither bytes nor seconds."""


KNOWN_BYTES = 1 << 20
"""Integers of a batch are known up to this size, and so is what is computed of them alone."""

_ADDITIONS = ("aten.add.Tensor", "aten.add_.Tensor")


def _is_python(node: Any) -> bool:
    """Whether a step of autograd runs Python code, whose variables decide what lives how long.

    That is the gradient of a custom function, or a forward pass that is run again, which alone
    has gradients.
    """
    return isinstance(node, BackwardCFunction) or (node is not None and torch.is_grad_enabled())


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _user_line() -> Loc:
    frame = user_frame(sys._getframe(2))
    if frame is None:
        return UNKNOWN
    return Loc(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _port(value: Value) -> Port:
    return Port(value.name, value.name, value.dtype, value.global_shape, value.role)


def _until(steps: Sequence[object]) -> tuple[int, ...]:
    """Returns, per op, the last of the neighbours that belong to the same step."""
    until = list(range(len(steps)))
    for at in range(len(steps) - 2, -1, -1):
        if steps[at] == steps[at + 1]:
            until[at] = until[at + 1]
    return tuple(until)
