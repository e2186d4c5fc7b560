"""Records the construction of a model: runs its constructor on fake tensors and notes every op.

Views aren't instructions: each tensor is noted as where it lies in its storage. Fake ops draw
nothing, so after each one that would, the generator is set to a mark of its own: where later code
seeds it, or saves and restores its state, the marks tell.
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from autopar.base.errors import InvalidInputError
from autopar.runtime.init.construction import START, Construction, Draw, Instruction, View
from autopar.runtime.init.replay import evaluate

_OVERWRITES = frozenset(
    f"aten::{name}_"
    for name in (
        *("copy", "fill", "zero", "normal", "uniform", "random", "bernoulli"),
        *("exponential", "log_normal", "cauchy", "geometric"),
    )
)
"""Ops that write every element of their first operand, whatever it was."""

_MARK = 0x6D61726B << 32
"""Seeds from here on are marks; nobody else's are so large."""


def record(make_model: Callable[[], nn.Module]) -> Construction:
    """Returns what a constructor computes. Nothing is allocated or drawn.

    Raises:
        InvalidInputError: If it doesn't return a module, doesn't build it on the CPU, or does what
            depends on numbers that it drew.
    """
    start = torch.default_generator.get_state()
    recorder = _Recorder(start)
    try:
        with warnings.catch_warnings(), _as_one(recorder), recorder:
            # Copies of parameters ask for it.
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            model = make_model()
        if not isinstance(model, nn.Module):
            raise InvalidInputError(
                f"init returned a {type(model).__name__}; it must make and return the model, as"
                " init=lambda: GPT(config)"
            )
        end = recorder.start_of(torch.default_generator)
    finally:
        torch.default_generator.set_state(start)
    tensors = {name: recorder.view(tensor) for name, tensor in _owned(model)}
    return Construction(
        tuple(recorder.instructions),
        recorder.sizes,
        tensors,
        frozenset(model.state_dict(keep_vars=True)) & tensors.keys(),
        end,
    )


def _owned(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


class _Recorder(TorchDispatchMode):
    """Carries out ops on fake tensors and notes them.

    Args:
        start: The state of torch's generator before the construction.
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.instructions: list[Instruction] = []
        self.sizes: dict[int, int] = {}
        # Of each storage's present content, and the other way round.
        self._contents: dict[int, int] = {}
        self._addresses: list[int] = []
        self._constants: dict[int, tuple[Tensor, Tensor]] = {}
        # A storage that is gone might leave its address to another one.
        self._kept: list[torch.UntypedStorage] = []
        self._positions = {(id(torch.default_generator), _key(start)): START}
        self._last = {id(torch.default_generator): START}
        self._draws = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        given, spec = tree_flatten((args, kwargs or {}))
        given = [self._faked(each) if isinstance(each, Tensor) else each for each in given]
        views = [self.view(each) if isinstance(each, Tensor) else each for each in given]
        args, kwargs = tree_unflatten(given, spec)
        try:
            with self.fake:
                result = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._computed(_Call(func, *tree_unflatten(views, spec)))
        # `Module.half` and its like refuse parameters that anything refers to weakly.
        self.fake.fake_tensor_converter.meta_converter.tensor_memo.clear()
        written = {self.view(each).content for each in _written(func, args, kwargs)}
        self._note(_Call(func, *tree_unflatten(views, spec)), written, tree_leaves(result))
        return result

    def view(self, tensor: Tensor) -> View:
        """Returns where a tensor lies, which an op has made before or which is a constant."""
        tensor = self._faked(tensor)
        storage = tensor.untyped_storage()
        content = self._contents[storage._cdata]
        if storage.nbytes() != self.sizes[content]:
            raise InvalidInputError(
                "init: the model changes the size of a tensor in place (`resize_`); let it make a"
                " new one"
            )
        return _view(tensor, content)

    def start_of(self, generator: torch.Generator) -> Tensor | int | None:
        """Returns what was done to a generator since the last draw. See `Draw.start`."""
        state = generator.get_state()
        position = self._positions.get((id(generator), _key(state)))
        if position is None:
            return state
        return None if position == self._last[id(generator)] else position

    def _faked(self, tensor: Tensor) -> Tensor:
        """Returns a tensor, or the fake one of a tensor that was not made under this mode."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._constants:
            with torch.no_grad():
                fake = self.fake.from_tensor(tensor.detach())
            self._constants[id(tensor)] = tensor, fake
            copied = _Call(torch.ops.aten.clone.default, (tensor.detach(),), {})
            self._add(copied, set(), [fake])
        return self._constants[id(tensor)][1]

    def _computed(self, call: _Call) -> object:
        """Returns the result of an op that depends on values, which are computed for it."""
        result = evaluate(self.instructions, self.sizes, *call)
        return self._faked(result) if isinstance(result, Tensor) else result

    def add_initialization(self, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Adds a call that draws the whole first argument, as one instruction."""
        with _disable_current_modes():
            self._add_initialization(func, args)

    def _add_initialization(self, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        view = self.view(args[0])
        begun = view if self._is_whole(view) else None
        self._add(_Call(func, (view, *args[1:]), {}), {view.content}, [], begun, draws=True)

    def _note(self, call: _Call, written: set[int], results: list[Any]) -> None:
        if torch.Tag.inplace_view in call.func.tags:
            # Where the tensor lies from now on, it says itself.
            return
        tensors = [each for each in results if isinstance(each, Tensor)]
        if written or any(each.untyped_storage()._cdata not in self._contents for each in tensors):
            draws = torch.Tag.nondeterministic_seeded in call.func.tags
            self._add(call, written, results, self._overwritten(call), draws)

    def _add(
        self,
        call: _Call,
        written: set[int],
        results: list[Any],
        begun: View | None = None,
        draws: bool = False,
    ) -> None:
        """Adds an instruction.

        Args:
            call: What is called, with views.
            written: The contents of which it writes a part.
            results: What it returned.
            begun: The first operand, if it is written as a whole.
            draws: Whether it draws random numbers.
        """
        draw = self._draw(call) if draws else None
        reads = {each.content for each in call.operands()}
        args, new = call.args, None
        if begun is not None:
            new = self._renewed(begun.content)
            reads, written = reads - {begun.content}, {new}
            args = (replace(begun, content=new), *args[1:])
        made = self._made(results)
        writes = written | {each.content for each in made.values()}
        self.instructions.append(
            Instruction(
                call.func,
                args,
                call.kwargs,
                made,
                new,
                frozenset(reads),
                frozenset(writes),
                draw,
                torch.get_default_dtype(),
            )
        )

    def _made(self, results: list[Any]) -> dict[int, View]:
        made = {}
        for at, each in enumerate(results):
            if not isinstance(each, Tensor):
                continue
            if each.device.type != "cpu":
                raise InvalidInputError(
                    f"init makes tensors on {each.device}; let it make them on the CPU, as one"
                    " device would be given them: pieces are moved to where the rank computes"
                )
            storage = each.untyped_storage()
            if storage._cdata not in self._contents:
                self._kept.append(storage)
                self._contents[storage._cdata] = content = len(self.sizes)
                self._addresses.append(storage._cdata)
                self.sizes[content] = storage.nbytes()
                made[at] = _view(each, content)
        return made

    def _overwritten(self, call: _Call) -> View | None:
        """Returns the first operand if the op gives it a new content as a whole."""
        if call.func._schema.name not in _OVERWRITES:
            return None
        first, *others = call.operands()
        apart = all(each.content != first.content for each in others)
        return first if apart and self._is_whole(first) else None

    def _is_whole(self, view: View) -> bool:
        """Whether a view has each element of its storage once."""
        elements = 1
        for stride, size in sorted(zip(view.stride, view.size, strict=True)):
            if size > 1 and stride != elements:
                return False
            elements *= size
        return elements * view.dtype.itemsize == self.sizes[view.content]

    def _renewed(self, content: int) -> int:
        new = len(self.sizes)
        self.sizes[new] = self.sizes[content]
        self._addresses.append(self._addresses[content])
        self._contents[self._addresses[new]] = new
        return new

    def _draw(self, call: _Call) -> Draw:
        given = (each for each in tree_leaves(call[1:]) if isinstance(each, torch.Generator))
        generator = next(given, torch.default_generator)
        start = self.start_of(generator)
        position, self._draws = self._draws, self._draws + 1
        generator.manual_seed(_MARK + position)
        self._positions[id(generator), _key(generator.get_state())] = position
        self._last[id(generator)] = position
        return Draw(generator, position, start)


class _Call(NamedTuple):
    """A call with views in place of tensors."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def operands(self) -> list[View]:
        """Returns its tensors."""
        return [each for each in tree_leaves(self[1:]) if isinstance(each, View)]


@contextmanager
def _as_one(recorder: _Recorder) -> Iterator[None]:
    """Has the recorder note as one what else looks at numbers that it drew.

    `trunc_normal_` draws until all numbers are within its bounds.
    """
    name = "_no_grad_trunc_normal_"
    original = getattr(nn.init, name)

    def noted(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given = inspect.signature(original).bind(tensor, *args, **kwargs).args
        recorder.add_initialization(original, given)
        return tensor

    setattr(nn.init, name, noted)
    try:
        yield
    finally:
        setattr(nn.init, name, original)


def _written(func: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yields the tensors that an op writes to."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (each for each in tree_leaves(given.get(argument.name)) if each is not None)


def _view(tensor: Tensor, content: int) -> View:
    return View(
        content,
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.is_conj(),
    )


def _key(state: Tensor) -> bytes:
    return hashlib.sha256(state.numpy().tobytes()).digest()
