"""Fused weights: one of unequal parts becomes one parameter per part.

What `sections` found is written out: a stored weight becomes several inputs, each a part of what
the weights file holds, and a product with it becomes several products. Then each part is split like
any weight, as if the projections had been stored one by one. On one device a single product is
faster, so `Complete` takes what is predicted to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from autopar.completion.prepare.sections import (
    Section,
    Sections,
    ends_sections,
    factor_parts,
    find_sections,
)
from autopar.completion.propagate.solve import Solution
from autopar.ir import emitted
from autopar.ir.dims import SubDim
from autopar.ir.expr.expression import IntExpr, planned, prod
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.ops.shape.pieces import put, taken
from autopar.ir.program import (
    Arg,
    Op,
    OpDist,
    Part,
    Port,
    Program,
    Signature,
    Value,
)
from autopar.ir.rules.distribution import local_args
from autopar.ir.rules.rule import Rule


def split_variants(program: Program) -> Iterator[Program]:
    """Yields the program with its fused weights taken apart; nothing if it has none.

    A pin of a fused weight is one of each part; second, if that makes a difference, of each but
    those that are at most half as large as another: heads of key and value may be fewer than the
    processes, and are then computed by each that needs them. What is stored as by another program,
    such as the one a plan was written from, stays as it is stored.
    """
    inherited = {name for name in program.main.inputs if _is_inherited(program.main.values[name])}
    if inherited and not inherited.isdisjoint(find_sections(program.main)):
        return
    split = split_fused_weights(program)
    if split is program:
        return
    yield split
    relaxed = _without_minor_pins(split)
    if relaxed is not split:
        yield relaxed


def split_fused_weights(program: Program) -> Program:
    """Returns the program with each fused weight as its parts; itself if it has none."""
    sections = find_sections(program.main)
    if not sections or program.mesh is None:
        return program
    return _SplitWeights(program, program.mesh, sections).split()


def splits_parts(program: Program, solution: Solution) -> bool:
    """Returns whether a part of a fused weight is split along what it is a part of.

    Args:
        program: With its fused weights taken apart.
        solution: How it was completed.
    """
    return any(
        dim in solution.forms[solution.graph.position[port.name]].splits.items
        for port in program.signature.inputs
        if port.part is not None
        for dim, (size, whole) in enumerate(zip(port.shape, port.part.shape, strict=True))
        if size != whole
    )


def _is_inherited(value: Value) -> bool:
    return value.origin is not None and value.origin.kind == "inherited"


def _without_minor_pins(program: Program) -> Program:
    """Returns the program without the pins of small parts."""
    main, ports = program.main, program.signature.inputs
    largest: dict[str, int] = {}
    for port in ports:
        if port.part is not None:
            size = planned(prod(port.shape))
            largest[port.part.of] = max(size, largest.get(port.part.of, 0))
    minor = {
        port.name
        for port in ports
        if port.part is not None
        and 2 * planned(prod(port.shape)) <= largest[port.part.of]
        and main.values[port.name].dist is not None
    }
    if not minor:
        return program
    values = {
        name: replace(value, dist=None, origin=_minor(value)) if name in minor else value
        for name, value in main.values.items()
    }
    return program.with_main(replace(main, values=values))


def _minor(value: Value) -> Origin:
    detail = value.origin.detail if value.origin else ""
    return Origin("chosen", f"{detail}: a small part, which lies where it is read")


class _SplitWeights:
    """One program being rewritten."""

    def __init__(self, program: Program, mesh: ProcessMesh, sections: Sections) -> None:
        self.program = program
        self.mesh = mesh
        self.sections = sections
        self.main = program.main
        self.values = dict(self.main.values)
        self.parts = self._named_parts()
        for name, parts in self.parts.items():
            for index, part in enumerate(parts):
                if part not in self.main.values:
                    self.values[part] = self._part(name, index, part)

    def split(self) -> Program:
        """Returns the program with every section as its parts."""
        ops = tuple(op for old in self.main.ops for op in self._written(old))
        main = replace(
            self.main,
            inputs=tuple(self._each(self.main.inputs)),
            outputs=tuple(self._each(self.main.outputs)),
            values={name: v for name, v in self.values.items() if name not in self.sections},
            ops=ops,
        )
        ports = self.program.signature
        signature = Signature(tuple(self._ports(ports.inputs)), tuple(self._ports(ports.outputs)))
        return replace(self.program.with_main(main), signature=signature)

    def _each(self, names: Iterable[str]) -> Iterator[str]:
        """Yields names, those of the parts in the place of what consists of them."""
        for name in names:
            yield from self.parts.get(name, (name,))

    def _named_parts(self) -> dict[str, tuple[str, ...]]:
        """Returns the names of all parts: those of the pieces that ops take or put anyway."""
        pieces: dict[tuple[str, tuple[int, int]], str] = {}
        for op in self.main.ops:
            if not ends_sections(op, self.main.values, self.sections):
                continue
            cut, joined = taken(op, self.main.values), put(op, self.main.values)
            if joined is not None and op.results[0] in self.sections:
                for name, ends in zip(op.operands, joined.ranges, strict=True):
                    pieces[op.results[0], ends] = name
            elif cut is not None:
                for name, ends in zip(op.results, cut.ranges, strict=True):
                    pieces.setdefault((op.operands[0], ends), name)
        return {
            name: tuple(
                pieces.get((name, ends)) or self._fresh(f"{name}[{ends[0]}:{ends[1]}]")
                for ends in section.ranges
            )
            for name, section in self.sections.items()
        }

    def _fresh(self, name: str) -> str:
        name = emitted.unused(name, self.values)
        self.values[name] = Value(name, "f32", ())
        return name

    def _part(self, name: str, index: int, part: str) -> Value:
        """Returns a part of a value, pinned as that is."""
        value, section = self.main.values[name], self.sections[name]
        shape = _with_size(value.global_shape, section, index)
        dist, origin = value.dist, value.origin
        if dist is not None:
            axes = dist.dims[section.dim][0].axes
            pinned = (SubDim(section.sizes[index], axes),)
            dims = (*dist.dims[: section.dim], pinned, *dist.dims[section.dim + 1 :])
            dist = Layout(dist.mesh, dims, dist.partial, dist.mask, dist.offload)
        if origin is not None:
            detail = ", ".join(filter(None, (origin.detail, f"part of %{name}")))
            origin = replace(origin, detail=detail)
        return replace(value, name=part, shape=shape, dist=dist, origin=origin)

    def _ports(self, ports: Sequence[Port]) -> Iterator[Port]:
        for port in ports:
            if port.name not in self.sections:
                yield port
                continue
            section = self.sections[port.name]
            for name, (start, stop) in zip(self.parts[port.name], section.ranges, strict=True):
                offset = tuple(start if dim == section.dim else 0 for dim in range(len(port.shape)))
                shape = tuple(
                    stop - start if dim == section.dim else size
                    for dim, size in enumerate(port.shape)
                )
                yield replace(
                    port, name=name, shape=shape, part=Part(port.name, port.known_shape, offset)
                )

    def _written(self, op: Op) -> Iterator[Op]:
        """Yields what becomes of an op."""
        if self.sections.keys().isdisjoint((*op.operands, *op.results)):
            yield op
        elif not ends_sections(op, self.main.values, self.sections):
            yield from self._computed(op)
        elif op.results[0] in self.sections:
            yield from self._joined(op)
        else:
            yield from self._taken(op)

    def _taken(self, op: Op) -> Iterator[Op]:
        """Yields the ops for pieces that aren't parts themselves."""
        cut = taken(op, self.main.values)
        source = op.operands[0]
        for result, ends in zip(op.results, cut.ranges if cut else (), strict=True):
            yield from self._cat(op, self._within(source, ends), result, self.sections[source].dim)

    def _joined(self, op: Op) -> Iterator[Op]:
        """Yields the ops for parts of which only pieces are put."""
        joined = put(op, self.main.values)
        (result,) = op.results
        section = self.sections[result]
        for part, (start, stop) in zip(self.parts[result], section.ranges, strict=True):
            pieces = [
                name
                for name, ends in zip(op.operands, joined.ranges if joined else (), strict=True)
                if start <= ends[0] < ends[1] <= stop
            ]
            yield from self._cat(op, pieces, part, section.dim)

    def _within(self, name: str, ends: tuple[int, int]) -> list[str]:
        parts = zip(self.parts[name], self.sections[name].ranges, strict=True)
        return [part for part, (start, stop) in parts if ends[0] <= start < stop <= ends[1]]

    def _cat(self, op: Op, pieces: Sequence[str], result: str, dim: int) -> Iterator[Op]:
        if list(pieces) == [result]:
            return
        yield emitted.cat(pieces, dim).instead_of(op, result)

    def _computed(self, op: Op) -> Iterator[Op]:
        """Yields an op once per part, and sums of the results that aren't parts."""
        rule = rule_of(op, self.main.values)
        parts = factor_parts(op, rule, self.sections) if rule is not None else None
        if rule is None or parts is None:
            raise ValueError(f"{op.kind} can't be taken apart")
        factor, sizes = parts
        results: list[tuple[str, ...]] = []
        for index, size in enumerate(sizes):
            named = tuple(self._result(name, index) for name in op.results)
            results.append(named)
            operands = [self.parts[n][index] if n in self.sections else n for n in op.operands]
            yield replace(
                op.with_operands(operands).with_args(self._args(op, rule, {factor: size})),
                results=named,
            )
        for number, name in enumerate(op.results):
            if name not in self.sections:
                yield from self._sum(op, [named[number] for named in results], name)

    def _args(self, op: Op, rule: Rule, sizes: Mapping[str, int]) -> Mapping[str, Arg]:
        """Returns the arguments that depend on the sizes of factors."""
        smaller = replace(rule, sizes={**rule.sizes, **sizes})
        given = dict(op.args)
        args = local_args(smaller, OpDist(self.mesh))
        return {name: arg for name, arg in args.items() if name in given}

    def _result(self, name: str, index: int) -> str:
        """Returns what a result is called that is computed from the parts with this number."""
        if name in self.sections:
            return self.parts[name][index]
        part = self._fresh(f"{name}.{index}")
        self.values[part] = replace(self.main.values[name], name=part, dist=None, origin=None)
        return part

    def _sum(self, op: Op, addends: Sequence[str], result: str) -> Iterator[Op]:
        total = addends[0]
        for last, addend in enumerate(addends[1:], start=2):
            name = result if last == len(addends) else self._result(result, len(addends) + last)
            added = emitted.combine("sum", addend, self.main.values[result].dtype)
            yield added.with_operand(total).instead_of(op, name)
            total = name


def _with_size(shape: Sequence[IntExpr], section: Section, index: int) -> tuple[IntExpr, ...]:
    sizes = list(shape)
    sizes[section.dim] = section.sizes[index]
    return tuple(sizes)
