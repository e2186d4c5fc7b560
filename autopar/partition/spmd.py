"""Partition: the program that every rank of the mesh runs.

Everything is decided before: completion says how each op is computed and how each value is
stored. What is left is to connect. An op needs its operands in certain layouts; a value exists in
some; a reshard leads from one to the other, and serves every op that needs the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from autopar.base.errors import VerificationError
from autopar.cost.cluster import Cluster
from autopar.cost.collectives import CommunicationModel
from autopar.cost.reshard.deferred_sums import awaited
from autopar.cost.reshard.planner import ReshardError, ReshardPlanner
from autopar.ir import emitted
from autopar.ir.layout import Layout, Origin
from autopar.ir.ops.loops import ENTERS, behind, depth
from autopar.ir.program import Arg, Function, Lifetime, Op, OpDist, Program, Ref, Value
from autopar.ir.text import print_op
from autopar.partition.boxes import with_boxes
from autopar.partition.forms import Forms, Group, Prices
from autopar.partition.interface import Interface, Interfaces, is_distributed
from autopar.partition.lower_reshard import LocalStep, lower_reshard


@dataclass(frozen=True)
class Partition:
    """Turns a completed serial program into the one program that all ranks run.

    Attributes:
        cluster: Predicts the seconds of reshards, of which the fastest is taken.
        planner: Knows reshards of earlier passes; None if there are none.
    """

    name: ClassVar[str] = "partition"
    cluster: Cluster
    planner: ReshardPlanner | None = field(default=None, repr=False, compare=False)

    def __call__(self, program: Program) -> Program:
        """Returns the partitioned program.

        Raises:
            VerificationError: If the program isn't a completed, legalized serial one, or the
                distribution of an op doesn't fit it.
        """
        if program.level != "serial" or program.mesh is None:
            state = "it has no mesh" if program.mesh is None else f"it is {program.level} already"
            raise VerificationError("can't partition the program", [state])
        planner = self.planner or ReshardPlanner(CommunicationModel(self.cluster, program.mesh))
        interfaces = Interfaces(program)
        functions = {
            name: _FunctionPartitioner(function, interfaces, planner).partition()
            if name == "main" or is_distributed(function)
            else function
            for name, function in program.functions.items()
        }
        signature = with_boxes(program.signature, functions["main"].values)
        return replace(program, functions=functions, signature=signature, level="partitioned")


class _FunctionPartitioner:
    """Builds a rank's version of one function."""

    def __init__(self, function: Function, interfaces: Interfaces, planner: ReshardPlanner) -> None:
        self.function = function
        self.interfaces = interfaces
        self.prices, self.deferred_prices = Prices(planner), Prices(planner.deferred)
        self.ops: list[Op] = []
        self.values: dict[str, Value] = {}
        self.forms: dict[str, Forms] = {}
        self.counts: dict[str, int] = {}
        self.stored = self._stored_layouts()
        self.renewed = {new for new, _ in function.aliases}
        self.deferred = {name for op in function.ops for name in op.results}
        self.deferred -= awaited(function.ops)
        made = {name: op for op in function.ops for name in op.results}
        self.depths = {name: depth(made.get(name)) for name in function.values}

    def partition(self) -> Function:
        function = self.function
        interfaces = [self.interfaces.interface_of(op, function) for op in function.ops]
        self._collect_needs(interfaces)
        for name in function.inputs:
            value = function.values[name]
            self._add_form(value, self.stored[name], value.origin, Lifetime(""))
        producers = function.producers()
        is_update = False
        for op, interface in zip(function.ops, interfaces, strict=True):
            if op.phase == "update" and not is_update:
                is_update = True
                self._send_outputs(producers)
            self._add_op(op, interface)
        outputs = []
        for name in function.outputs:
            reader = behind(producers.get(name) or _reader(function.values[name]))
            outputs.append(self._demand(name, self.stored[name], reader))
        return replace(function, outputs=tuple(outputs), values=self.values, ops=tuple(self.ops))

    def _send_outputs(self, producers: Mapping[str, Op]) -> None:
        """Sends outputs that other slices keep there before anything is written over.

        Every rank knows the loss before it takes over a step.
        """
        for name in self.function.outputs:
            made = next(iter(self.forms[name].names), None)
            if made is not None and made.mesh != self.stored[name].mesh and name in producers:
                self._demand(name, self.stored[name], behind(producers[name]))

    def _stored_layouts(self) -> dict[str, Layout]:
        """Returns the canonical layout of each value; equal ones are one object."""
        known: dict[Layout, Layout] = {}
        stored: dict[str, Layout] = {}
        bare: list[str] = []
        for name, value in self.function.values.items():
            layout = value.dist
            if layout is None:
                bare.append(f"%{name}")
                continue
            if layout not in known:
                canonical = layout.normalized()
                known[layout] = known.setdefault(canonical, canonical)
            stored[name] = known[layout]
        if bare:
            raise VerificationError(
                f"can't partition @{self.function.name}",
                [f"{len(bare)} values have no layout: {', '.join(bare[:8])}; complete it first"],
            )
        return stored

    def _collect_needs(self, interfaces: list[Interface]) -> None:
        values = self.function.values
        self.forms = {n: Forms(value.dtype, self.stored[n]) for n, value in values.items()}
        for op, interface in zip(self.function.ops, interfaces, strict=True):
            lifetime = op.lifetime
            for position, (name, layout) in enumerate(
                zip(op.operands, interface.needs, strict=True)
            ):
                if position in interface.windows:
                    self.forms[name].need_windows(interface.windows[position], lifetime)
                else:
                    self.forms[name].need(layout, lifetime)
        producers = self.function.producers()
        for name in self.function.outputs:
            reader = behind(producers.get(name) or _reader(values[name]))
            self.forms[name].need(self.stored[name], reader.lifetime)

    def _add_op(self, op: Op, interface: Interface) -> None:
        operands = [
            self._demand_window(name, interface.windows[position], op)
            if position in interface.windows
            else self._demand(name, layout, op)
            for position, (name, layout) in enumerate(
                zip(op.operands, interface.needs, strict=True)
            )
        ]
        results, owner = [], behind(op)
        for name, layout in zip(op.results, interface.gives, strict=True):
            value = self.function.values[name]
            origin = value.origin
            if layout != self.stored[name]:
                origin = Origin("implied", f"produced by {op.kind}")
            results.append(self._add_form(value, layout, origin, owner.lifetime))
        local = op.with_operands(operands).with_args(interface.args)
        self.ops.append(
            replace(
                local,
                kind=interface.kind,
                results=tuple(results),
                plan=(*op.plan, *interface.plan),
            )
        )
        if op.kind in ENTERS:
            # What iterations are given is there in front of them; what is made of it is within.
            return
        for name, layout in zip(op.results, interface.gives, strict=True):
            target = self._finished(name, layout, owner.lifetime) if layout.partial else None
            if target is not None:
                self._demand(name, target, owner)

    def _finished(self, name: str, made: Layout, now: Lifetime) -> Layout | None:
        """Returns the form to which a pending result is reduced at once, if it is for later phases.

        So a gradient that is kept split needs the memory of its piece only, and communication is
        under way while others are computed.
        """
        if now in self.forms[name].needed or self.forms[name].windows:
            return None
        reduced = self.forms[name].first(self._prices(name))
        is_early = reduced == self.stored[name] or not self.forms[name].is_gathered(reduced)
        return reduced if reduced != made and is_early else None

    def _demand(self, name: str, layout: Layout, reader: Op) -> str:
        """Returns the name of a form, made now if it isn't there yet."""
        forms, lifetime = self.forms[name], reader.lifetime
        if layout not in forms.there(lifetime):
            try:
                self._make(name, layout, reader)
            except ReshardError as error:
                problems = [f"{print_op(reader, {})}: %{name}: {why}" for why in error.problems]
                raise VerificationError("can't partition", problems) from error
        return forms.there(lifetime)[layout]

    def _demand_window(self, name: str, group: Group, reader: Op) -> str:
        """Returns the name of windows of a value, made now if they aren't there yet."""
        forms, lifetime = self.forms[name], reader.lifetime
        known = forms.cut_in(group, lifetime)
        if known is None:
            way = forms.way(group, lifetime, self._prices(name))
            origin = Origin("implied", f"windows of %{name}")
            known = self._demand(name, way.layout, reader)
            value = self.function.values[name]
            for step in way.steps:
                result = self._fresh(name)
                self._append(step.kind, known, step.args, result, way.layout, origin, reader)
                # No layout describes pieces that overlap.
                role = value.role if value.role == "gradient" else "activation"
                local = replace(value, name=result, shape=step.shape, role=role)
                self.values[result] = replace(local, dist=None, origin=origin)
                known = result
            forms.add_windows(group, known, lifetime, lasts=self._lasts(name, reader))
        return known

    def _prices(self, name: str) -> Prices:
        """Returns what predicts the reshards of a value."""
        return self.deferred_prices if name in self.deferred else self.prices

    def _make(self, name: str, layout: Layout, reader: Op) -> None:
        """Makes a form from another, which may have to be made before."""
        forms, lifetime = self.forms[name], reader.lifetime
        prices = self._prices(name)
        source = forms.source(layout, lifetime, prices)
        if source not in forms.there(lifetime):
            self._make(name, source, reader)
        gathered = forms.is_gathered
        if not gathered(source) and not gathered(layout):
            reader = replace(reader, loops=reader.loops[: self.depths[name]])
        value = self.function.values[name]
        reshard = prices.planner.plan(source, layout, value.itemsize)
        origin = Origin("implied", f"reshard of %{name} from {source} to {layout}")
        current = forms.there(lifetime)[source]
        steps = lower_reshard(source, reshard)
        if name in self.renewed and layout.mesh.fixed and layout.mesh != source.mesh:
            # Who sends new content has the move's result too, but nothing to write it to.
            steps.append(LocalStep(*emitted.alias(), layout))
        for step in steps[:-1]:
            current = self._add_step(value, step, current, origin, reader)
        lasts = self._lasts(name, reader)
        result = self._add_form(value, layout, origin, lifetime, lasts=lasts)
        self._append(steps[-1].kind, current, steps[-1].args, result, layout, origin, reader)

    def _add_step(
        self, value: Value, step: LocalStep, operand: str, origin: Origin, reader: Op
    ) -> str:
        result = self._add_value(value, self._fresh(value.name), step.layout, origin)
        self._append(step.kind, operand, step.args, result, step.layout, origin, reader)
        return result

    def _append(
        self,
        kind: str,
        operand: str,
        args: tuple[tuple[str, Arg], ...],
        result: str,
        layout: Layout,
        origin: Origin,
        reader: Op,
    ) -> None:
        """Adds an op of a reshard."""
        self.ops.append(
            Op(
                kind,
                (("self", Ref(operand)), *args),
                (result,),
                dist=OpDist(layout.mesh),
                origin=origin,
                loc=reader.loc,
                stage=reader.stage,
                **reader.lifetime._asdict(),
            )
        )

    def _lasts(self, name: str, reader: Op) -> bool:
        """Returns whether what is made for a reader, where it is, is there behind its loops too."""
        return len(reader.loops) <= self.depths[name]

    def _add_form(
        self,
        value: Value,
        layout: Layout,
        origin: Origin | None,
        lifetime: Lifetime,
        *,
        lasts: bool = True,
    ) -> str:
        """Adds a form of a value; the one it is stored in keeps the value's name."""
        stored = layout == self.stored[value.name]
        name = value.name if stored else self._fresh(value.name)
        self.forms[value.name].add(layout, name, lifetime, lasts=lasts)
        return self._add_value(value, name, layout, value.origin if stored else origin)

    def _add_value(self, value: Value, name: str, layout: Layout, origin: Origin | None) -> str:
        role = value.role
        if name != value.name and role != "gradient":
            role = "activation"
        self.values[name] = Value(
            name, value.dtype, layout.local_shape, role, layout, origin, value.loc
        )
        return name

    def _fresh(self, name: str) -> str:
        known: Mapping[str, Value] = self.function.values
        while True:
            self.counts[name] = self.counts.get(name, 0) + 1
            fresh = f"{name}.{self.counts[name]}"
            if fresh not in known and fresh not in self.values:
                return fresh


def _reader(value: Value) -> Op:
    """Stands for the caller, who reads an output that no op produces."""
    return Op("output", (), (), loc=value.loc)
