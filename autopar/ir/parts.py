"""Parts: from one program whose ops run on slices of the mesh to a program per kind of rank.

Ranks that are on the same slices run the same program: the ops of those slices, and of what moves
between slices those ends that touch them. So the work grows with the number of slices that differ,
not with the number of ranks. A program on the whole mesh stays as it is.

Every rank has all inputs and outputs of the program in its signature; of those on other slices it
holds a piece without elements (see `Port.box`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from autopar.ir import emitted
from autopar.ir.collectives import declared, is_collective
from autopar.ir.fixed import Fixed, holds, in_order, indices_of
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Arg, Function, Op, Program, Ref, Value, called, fixed_of


@dataclass(frozen=True)
class Parts:
    """The programs of all ranks.

    Attributes:
        programs: Each different one.
        firsts: The coordinates of the first rank that runs it.
        axes: The mesh axes.
        slices: The slices that tell ranks apart.
        of: The program of the ranks that are on just these slices.
    """

    programs: tuple[Program, ...]
    firsts: tuple[Mapping[str, int], ...]
    axes: tuple[str, ...]
    slices: tuple[Fixed, ...]
    of: Mapping[frozenset[Fixed], int]

    @property
    def kinds(self) -> list[tuple[Program, Mapping[str, int]]]:
        """Each program with the coordinates of the first rank that runs it."""
        return [*zip(self.programs, self.firsts, strict=True)]

    def program_at(self, coords: Sequence[int]) -> int:
        """Returns the number of the program of the rank with these coordinates."""
        return self.of[_slices_at(self.slices, dict(zip(self.axes, coords, strict=True)))]


def parts_of(program: Program) -> tuple[Program, ...]:
    """Returns the different programs of ranks; one that is on no mesh is the only one."""
    return (program,) if program.mesh is None else programs_of(program).programs


def rejoined(program: Program, parts: Sequence[Program], changed: Sequence[Program]) -> Program:
    """Returns a program whose parts have more ops, ops with other operands, or some earlier.

    Args:
        program: The program.
        parts: Its parts.
        changed: Each with what is new. What several parts have is changed in one of them at most.
    """
    joining = _Joining(program, parts, changed)
    ops = [each for op in program.main.ops for each in joining.up_to(op)]
    return program.with_main(replace(program.main, values=joining.values, ops=tuple(ops)))


class _Joining:
    """Takes ops from parts, in the order that each of them has.

    Attributes:
        values: Those of the program, and what is new.
    """

    def __init__(
        self, program: Program, parts: Sequence[Program], changed: Sequence[Program]
    ) -> None:
        self.values = dict(program.main.values)
        self._own = {op.results for op in program.main.ops}
        self._done: set[tuple[str, ...]] = set()
        self._instead: dict[tuple[str, ...], Op] = {}
        self._left: list[Iterator[Op]] = []
        self._in: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for number, (part, other) in enumerate(zip(parts, changed, strict=True)):
            before = {op.results: op for op in part.main.ops}
            added = [op for op in other.main.ops if op.results not in before]
            names = (name for op in added for name in op.results)
            self.values.update((name, other.main.values[name]) for name in names)
            self._own.update(op.results for op in added)
            for op in other.main.ops:
                if op != before.get(op.results):
                    self._instead[op.results] = op
                self._in[op.results].append(number)
            self._left.append(iter(other.main.ops))

    def up_to(self, op: Op) -> Iterator[Op]:
        """Yields an op of the program, behind what parts that have it run before."""
        if op.results in self._done:
            return
        for number in self._in.get(op.results, ()):
            for each in self._left[number]:
                if each.results == op.results:
                    break
                if each.results in self._own and each.results not in self._done:
                    self._done.add(each.results)
                    yield self._instead.get(each.results, each)
        self._done.add(op.results)
        yield self._instead.get(op.results, op)


def programs_of(program: Program) -> Parts:
    """Returns the programs of the ranks, from one whose ops name their slices."""
    mesh, main = program.mesh, program.main
    assert mesh is not None
    slices = tuple(dict.fromkeys(sorted(_slices(main), key=in_order)))
    numbers: dict[frozenset[Fixed], int] = {}
    programs: list[Program] = []
    firsts: list[Mapping[str, int]] = []
    for coords in _kinds_of_ranks(mesh, slices):
        here = _slices_at(slices, coords)
        if here not in numbers:
            numbers[here] = len(programs)
            programs.append(_called(program, _part(main, here)) if slices else program)
            firsts.append(coords)
    return Parts(tuple(programs), tuple(firsts), mesh.dim_names, slices, numbers)


def _called(program: Program, main: Function) -> Program:
    """Returns a program with another main function, and what that calls of the others."""
    functions = {"main": main}
    missing = [main]
    while missing:
        names = called(missing.pop()) - functions.keys()
        missing += (program.functions[name] for name in names)
        functions.update((name, program.functions[name]) for name in names)
    kept = (name for name in program.functions if name in functions)
    return replace(program, functions={name: functions[name] for name in kept})


def _slices(function: Function) -> Iterator[Fixed]:
    """Yields the slices of a function's ops and values."""
    meshes = dict.fromkeys(
        [
            *(value.dist.mesh for value in function.values.values() if value.dist is not None),
            *(op.dist.mesh for op in function.ops if op.dist is not None),
        ]
    )
    return (mesh.fixed for mesh in meshes if mesh.fixed)


def _kinds_of_ranks(mesh: ProcessMesh, slices: Iterable[Fixed]) -> Iterator[dict[str, int]]:
    """Yields coordinates of at least one rank of each kind.

    Along an axis, all indices at which no slice is fixed are alike.
    """
    named: dict[str, set[int]] = {axis: set() for axis in mesh.dim_names}
    for axis, index in (pair for fixed in slices for pair in fixed):
        named[axis].update(indices_of(index))
    choices = []
    for axis, indices in named.items():
        other = next((index for index in range(mesh.axis_size(axis)) if index not in indices), None)
        choices.append(sorted(indices if other is None else {*indices, other}))
    for coords in product(*choices):
        yield dict(zip(named, coords, strict=True))


def _slices_at(slices: Iterable[Fixed], coords: Mapping[str, int]) -> frozenset[Fixed]:
    """Returns the slices that a rank is on."""
    return frozenset(fixed for fixed in slices if holds(fixed, coords))


def _part(function: Function, here: frozenset[Fixed]) -> Function:
    """Returns what the ranks do that are on these slices."""
    values: dict[str, Value] = {}
    places: dict[str, Fixed] = {}
    for name in function.inputs:
        value = function.values[name]
        values[name] = _held(value, here)
        places[name] = fixed_of(value.dist)
    ops: list[Op] = []
    for op in function.ops:
        for each, made in _ends(op, function.values, places, here):
            ops.append(each)
            values.update((value.name, value) for value in made)
        places.update(dict.fromkeys(op.results, fixed_of(op.dist)))
    elsewhere = {out: into for out, into in function.aliases if out not in values}
    if elsewhere:
        values.update((name, _held(function.values[name], here)) for name in elsewhere)
        kept: tuple[Arg, ...] = tuple(map(Ref, elsewhere.values()))
        ops.append(Op("barrier", (("operands", kept),), tuple(elsewhere), phase="update"))
    return replace(function, values=values, ops=tuple(ops))


def _ends(
    op: Op, values: Mapping[str, Value], places: Mapping[str, Fixed], here: frozenset[Fixed]
) -> Iterator[tuple[Op, list[Value]]]:
    """Yields what an op is on a rank, with the values that are made there.

    Args:
        op: The op.
        values: All values.
        places: The slice on which each earlier value is.
        here: The slices that the rank is on.
    """
    made = [values[name] for name in op.results]
    gets = _is_there(fixed_of(op.dist), here)
    if not is_collective(op.kind):
        if gets:
            yield op, made
        return
    brings = _is_there(places[op.operands[0]], here)
    if gets and not brings:
        # A rank that only receives brings memory of the right size.
        room = replace(made[0], name=f"{made[0].name}.room", role="activation")
        if declared(op.kind).apart:
            room = _without(room, op)
        yield _room(room, op), [room]
        yield op.with_operands([room.name]), made
    elif brings:
        sent_only = declared(op.kind).apart
        yield op, [_without(each, op) for each in made] if sent_only else made


def _without(value: Value, op: Op) -> Value:
    """Returns a value that has nothing of the dimension of which members bring or get parts."""
    (dim,) = declared(op.kind).dims
    at = op.arg(dim.name)
    assert isinstance(at, int)
    shape = (*value.shape[:at], 0, *value.shape[at + 1 :])
    return replace(value, shape=shape, dist=None)


def _is_there(fixed: Fixed, here: frozenset[Fixed]) -> bool:
    return not fixed or fixed in here


def _held(value: Value, here: frozenset[Fixed]) -> Value:
    """Returns an input or output as a rank holds it: without elements, if it is elsewhere."""
    if value.dist is None or _is_there(value.dist.mesh.fixed, here):
        return value
    return replace(value, shape=(0, *value.shape[1:]), dist=None)


def _room(value: Value, op: Op) -> Op:
    """Returns what makes room for a value, in the place of an op."""
    room = emitted.empty(value.shape, value.dtype).instead_of(op, value.name)
    return replace(room, plan=())
