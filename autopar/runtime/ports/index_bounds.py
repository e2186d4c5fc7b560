"""Notices inputs that index what isn't there, before anything is computed with them.

An op that fails ends the ranks: some wait for others in a collective meanwhile. And the shard of a
lookup finds zeros where an index lies in no shard. So what a program makes of integers that users
give, up to where it looks something up with them, is computed beforehand, and compared with the
number of entries there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.dtypes import INTEGERS
from autopar.ir.expr.at_rank import size_at
from autopar.ir.expr.at_sizes import NO_SIZES, Sizes, as_coords
from autopar.ir.expr.expression import planned
from autopar.ir.ops.index.lookups import REARRANGED, Lookup, lookups_of
from autopar.ir.program import SEED, Function, Op, Program, Value
from autopar.ir.unroll import unrolled
from autopar.runtime.execute.code import Code, Forward
from autopar.runtime.execute.describe import describe_failure, reason_of
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.locate import failing_op
from autopar.runtime.kernels.bindings import fast_kernel
from autopar.runtime.ports.ports import is_weight
from autopar.runtime.ports.rates import is_rate

_MOST_OPS = 64
"""Ops between inputs and an index."""

_GROWTH = 4
"""How many times as many elements they may make as the inputs have: it is done in each call."""


_FEW = 64
"""How many indices are looked at one by one."""


def _wrong(lookup: Lookup, entries: range, index: Tensor) -> int | None:
    """Returns the first number that is out of range; None if there is none."""
    if not index.numel():
        return None
    low, high = _ends(index)
    if entries.start <= low and high < entries.stop:
        return None
    outside = (index < entries.start) | (index >= entries.stop)
    if lookup.ignored is not None:
        outside &= index != lookup.ignored
    found = index[outside]
    return int(found.flatten()[0]) if found.numel() else None


def _ends(index: Tensor) -> tuple[int, int]:
    """Returns the smallest and the largest number; of a few, faster than a kernel is called."""
    if index.numel() <= _FEW:
        numbers = index.flatten().tolist()
        return min(numbers), max(numbers)
    low, high = index.aminmax()
    return int(low), int(high)


def _entries(lookup: Lookup, sizes: Sizes) -> range:
    """Returns the numbers of the entries of a lookup, at sizes that are open."""
    least, size = lookup.least, lookup.size
    if not isinstance(least, int) or not isinstance(size, int):
        known = as_coords(sizes)
        least, size = size_at(least, known), size_at(size, known)
    assert isinstance(least, int)
    assert isinstance(size, int)
    return range(least, size)


def _refusal(lookup: Lookup, entries: range, number: int, labels: Sequence[str]) -> str:
    """Returns why inputs are refused that have a number which is out of range."""
    also = "" if lookup.ignored is None else f", or {lookup.ignored} for none"
    return (
        f"{number} is out of range in {' and '.join(map(repr, labels))}: {lookup.op.kind} at"
        f" {lookup.op.loc} has {entries.stop} entries, {entries.start} to {entries.stop - 1}{also}"
    )


class IndexBounds:
    """What indices among a program's inputs must be.

    Args:
        serial: The one-device program.
    """

    def __init__(self, serial: Program) -> None:
        serial = unrolled(_with_integers(serial))
        main, signature = serial.main, serial.signature
        self._labels = {
            port.name: port.user_label
            for port in signature.inputs
            if port.role != SEED and not is_weight(port) and not is_rate(port)
        }
        producers = main.producers()
        found = {
            each: cone
            for op in main.ops
            for each in lookups_of(op, main.values)
            if (cone := _cone(each.index, main, producers, self._labels)) is not None
        }
        self._cones = found
        self._inputs: tuple[str, ...] = ()
        self._code: Code | None = None
        if found:
            ops = {id(op) for cone in found.values() for op in cone.ops}
            indices = dict.fromkeys(each.index for each in found)
            self._indices = tuple(indices)
            program = _part(serial, self._labels, ops, self._indices)
            self._inputs = program.main.inputs
            self._code = Code(program, {}, _generated)

    def check(self, inputs: Mapping[str, Tensor], sizes: Sizes = NO_SIZES) -> None:
        """Refuses inputs with an index that is out of range.

        Args:
            inputs: Global tensors by value name. Those on an accelerator aren't looked at: the host
                would wait for all that it was told, and kernels there refuse such an index.
            sizes: What is open.

        Raises:
            InvalidInputError: If there is one.
        """
        if self._code is None or not all(inputs[name].is_cpu for name in self._inputs):
            return
        try:
            with torch.no_grad():
                given = (inputs[name] for name in self._inputs)
                computed = self._code.at(sizes)(*given)
        except (RuntimeError, IndexError) as error:
            # An index of something that indices are looked up in.
            op = failing_op(error)
            why = reason_of(error) if op is None else describe_failure(op, error)
            raise InvalidInputError(f"the inputs can't be used: {why}") from error
        found = dict(zip(self._indices, computed, strict=True))
        for each, cone in self._cones.items():
            entries = _entries(each, sizes)
            if (number := _wrong(each, entries, found[each.index])) is not None:
                labels = [self._labels[name] for name in cone.inputs]
                raise InvalidInputError(_refusal(each, entries, number, labels))

    def check_parts(self, parts: Mapping[str, Tensor]) -> None:
        """Refuses parts of inputs with an index that is out of range, as far as parts tell.

        Args:
            parts: By value name. They are looked at where all of an input is looked up as it is.

        Raises:
            InvalidInputError: If there is one.
        """
        for each, cone in self._cones.items():
            if not cone.rearranges or not parts[cone.inputs[0]].is_cpu:
                continue
            (name,) = cone.inputs
            entries = _entries(each, NO_SIZES)
            if (number := _wrong(each, entries, parts[name])) is not None:
                raise InvalidInputError(_refusal(each, entries, number, [self._labels[name]]))


def _generated(program: Program) -> Forward:
    return emit(program, {}, find_kernel=fast_kernel).forward


@dataclass(frozen=True)
class _Cone:
    """What an index is computed with: inputs, and ops."""

    inputs: tuple[str, ...]
    ops: tuple[Op, ...]

    @property
    def rearranges(self) -> bool:
        """Whether an index has the numbers of one input, all of them and nothing else."""
        return len(self.inputs) == 1 and all(op.kind in REARRANGED for op in self.ops)


def _with_integers(serial: Program) -> Program:
    """Returns a program that makes integers, and looks up with them; all else is given to it."""
    main = serial.main
    ops = [op for op in main.ops if _concerns_integers(op, main)]
    made = {name for op in ops for name in op.results}
    read = dict.fromkeys((*main.inputs, *(name for op in ops for name in op.operands)))
    inputs = tuple(name for name in read if name not in made)
    values = {name: main.values[name] for name in (*inputs, *made)}
    kept = replace(main, inputs=inputs, outputs=(), values=values, ops=tuple(ops), aliases=())
    return serial.with_main(kept)


def _concerns_integers(op: Op, main: Function) -> bool:
    makes = any(main.values[name].dtype in INTEGERS for name in op.results)
    return makes or next(lookups_of(op, main.values), None) is not None


def _cone(
    index: str, main: Function, producers: Mapping[str, Op], given: Mapping[str, str]
) -> _Cone | None:
    """Returns the cone of an index; None if it takes more than a few integers that users give."""
    values, inputs, ops = main.values, dict[str, None](), dict[int, Op]()
    waiting, seen = [index], {index}
    while waiting:
        name = waiting.pop()
        op = producers.get(name)
        if values[name].dtype not in INTEGERS or len(ops) > _MOST_OPS:
            return None
        if op is None:
            if name not in given:
                return None
            inputs[name] = None
        elif not op.kind.startswith("aten."):
            return None
        else:
            ops[id(op)] = op
            fresh = [each for each in op.operands if each not in seen]
            waiting.extend(fresh)
            seen.update(fresh)
    made = sum(_count(values[name]) for op in ops.values() for name in op.results)
    if not inputs or made > _GROWTH * len(ops) * sum(_count(values[name]) for name in inputs):
        return None
    ordered = tuple(name for name in main.inputs if name in inputs)
    return _Cone(ordered, tuple(ops.values()))


def _count(value: Value) -> int:
    return prod(map(planned, value.shape))


def _part(
    serial: Program, given: Mapping[str, str], ops: set[int], outputs: tuple[str, ...]
) -> Program:
    """Returns the program that computes indices alone."""
    main = serial.main
    kept = tuple(op for op in main.ops if id(op) in ops)
    read = {*outputs, *(name for op in kept for name in op.operands)}
    inputs = tuple(name for name in main.inputs if name in given and name in read)
    names = {*inputs, *(name for op in kept for name in op.results)}
    values = {name: value for name, value in main.values.items() if name in names}
    return serial.with_main(
        replace(main, inputs=inputs, outputs=outputs, values=values, ops=kept, aliases=())
    )
