"""Subject: a compiled program together with what decided it, from a build or fresh from compile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from autopar.base.arguments import PATH, shown
from autopar.base.errors import InvalidInputError, near_misses
from autopar.completion.problem.op_strategies import CallTable
from autopar.completion.problem.space import Space
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.ir.builds.files import read_build
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program, Value
from autopar.modules import CompiledModule
from autopar.pipeline import Compiled, CompileOptions, recorded_options

Explainable = str | Path | Compiled | CompiledModule
"""What can be explained: a build folder, or what a compilation returned."""


@dataclass(frozen=True)
class Subject:
    """A compiled program, and what decided it.

    Attributes:
        serial: The completed program.
        completed: The same before ops were replaced by bodies.
        options: The cluster, the presets, the memory.
        is_moved: Whether the cluster isn't the one for which it was compiled.
    """

    serial: Program
    completed: Program
    options: CompileOptions
    is_moved: bool = False

    @classmethod
    def of(cls, what: Explainable) -> Subject:
        """Returns the subject that a build folder or a compilation is.

        Raises:
            InvalidInputError: If it isn't a build, or an older autopar wrote it.
        """
        if isinstance(what, CompiledModule):
            what = what.compiled
        if isinstance(what, Compiled):
            return cls(what.serial, what.completed, what.options)
        if not PATH.fits(what):
            raise InvalidInputError(
                f"{shown(what)} is no build: give a build folder, or what `compile` or"
                " `compile_onnx` returned"
            )
        build = read_build(what)
        build.check_distribution()
        return cls(build.serial, build.completed, recorded_options(build))

    def on(self, cluster: Cluster) -> Subject:
        """Returns the same program on another cluster."""
        options = replace(self.options, cluster=cluster)
        return replace(self, options=options, is_moved=options != self.options)

    @cached_property
    def mesh(self) -> ProcessMesh:
        """The processes."""
        assert self.serial.mesh is not None
        return self.serial.mesh

    @cached_property
    def planner(self) -> ReshardPlanner:
        """Plans reshards on the cluster."""
        return ReshardPlanner(CommunicationModel(self.options.cluster, self.mesh))

    @cached_property
    def calls(self) -> CallTable:
        """What is known of its ops, for all of its alternatives."""
        return CallTable(Space(self.mesh, self.options.cluster, self.planner))

    def program(self, name: str) -> Program:
        """Returns the program that is to say about a value: before bodies, if it was there then."""
        return self.completed if name in self.completed.main.values else self.serial

    def value(self, name: str) -> Value:
        """Returns the value that a name or label means.

        Args:
            name: A value's name, with or without `%`, or the user's name of an input or output.

        Raises:
            InvalidInputError: If there is none; names the closest ones.
        """
        values = self.serial.main.values
        name = name.removeprefix("%")
        if name in values:
            return values[name]
        ports = (*self.serial.signature.inputs, *self.serial.signature.outputs)
        labels = {label: port.name for port in reversed(ports) for label in port.aliases}
        labels |= {port.label: port.name for port in reversed(ports) if port.label}
        if name in labels:
            return values[labels[name]]
        # An ONNX node is located as `name (type)`.
        named = (op for op in self.serial.main.ops if op.loc.name and not op.loc.line)
        nodes = {op.loc.name.partition(" (")[0]: op.results[0] for op in named}
        if name in nodes:
            return values[nodes[name]]
        raise InvalidInputError(f"there is no value {name!r}{_hint(name, [*labels, *values])}")


def _hint(name: str, known: list[str]) -> str:
    close = near_misses(name, dict.fromkeys(known))
    if close:
        return close
    holding = [each for each in dict.fromkeys(known) if name in each]
    if holding:
        return f"; {name!r} is in {', '.join(holding[:4])}"
    return "; `autopar inspect BUILD --serial` shows all names"
