"""What a compilation decided and made of it: fresh, or read from a build."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.base.units import counted
from autopar.completion.problem.problem import Problem
from autopar.cost import Cluster
from autopar.ir.builds.files import Build
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.deployment import Deployment
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import STORED_ROLES, Program
from autopar.pipeline.options import CompileOptions
from autopar.pipeline.recorded import recorded_options
from autopar.planning.lowering import Lowering, Store
from autopar.planning.planner import Planner
from autopar.planning.price import Price, price


@dataclass(frozen=True, repr=False)
class Decided:
    """A plan, the problem that it solves, and what else was decided.

    Attributes:
        serial: The completed program, with all attributes, that the ranks' programs realize.
        completed: The same before ops were replaced by bodies: the plan.
        options: What the user decided.
        is_moved: Whether the options name another cluster than the plan was made for.
    """

    serial: Program
    completed: Program
    options: CompileOptions
    is_moved: bool = field(default=False, kw_only=True)

    @classmethod
    def of_build(cls, build: Build) -> Decided:
        """Returns what a build folder says of how it was compiled.

        Raises:
            InvalidInputError: If an older autopar wrote it.
        """
        build.check_distribution()
        return cls(build.serial, build.completed, recorded_options(build))

    def __repr__(self) -> str:
        """Returns its name and size on one line: programs are shown by `print_program`."""
        axes = " x ".join(f"{axis}={size}" for axis, size in self.mesh.axis_sizes().items())
        size = f"{counted(len(self.serial.main.ops), 'op')} on {axes}"
        return f"<{type(self).__name__} {self.serial.name}: {size}>"

    def on(self, cluster: Cluster) -> Decided:
        """Returns the same plan on another cluster."""
        options = replace(self.options, cluster=cluster)
        moved = options != self.options
        return Decided(self.serial, self.completed, options, is_moved=moved)

    @cached_property
    def mesh(self) -> ProcessMesh:
        """The processes."""
        assert self.serial.mesh is not None
        return self.serial.mesh

    @cached_property
    def problem(self) -> Problem:
        """What the plan solves: the program with the user's pins only."""
        return Problem.behind(self.completed, self.options.cluster)

    @cached_property
    def lowering(self) -> Lowering:
        """The passes from plans to what ranks run."""
        return lowering_of(self.problem, self.options)

    @cached_property
    def ranks(self) -> Program:
        """What a rank runs, before mapping.

        Raises:
            DoesNotFit: If it can't be made to fit into memory, on another cluster.
        """
        return self.planner.ranks(self.completed, self.options.memory_bytes)

    @cached_property
    def planner(self) -> Planner:
        """Makes other plans, without a limit of time."""
        return Planner(self.problem, self.lowering, self.options.strategy)

    def price(self, completed: Program | None = None) -> Price:
        """Returns what one execution takes.

        Args:
            completed: Another plan of the problem; by default this one.

        Raises:
            DoesNotFit: If it can't be made to fit into memory.
        """
        if completed is None:
            ranks = self.ranks
        else:
            ranks = self.planner.ranks(completed, self.options.memory_bytes)
        return price(ranks, self.options.cluster, self.problem.planner.model)

    def stored_layouts(self) -> dict[str, Layout]:
        """Returns how what is stored lies, by value name."""
        values = self.serial.main.values
        stored = [port.name for port in self.serial.signature.inputs if port.role in STORED_ROLES]
        return {name: dist for name in stored if (dist := values[name].dist) is not None}


@dataclass(frozen=True, repr=False)
class Compiled(Decided):
    """A compiled program.

    Attributes:
        partitioned: What a rank runs, before mapping and strip.
        deployment: The executable programs and which rank runs which.
        report: What the user should know: fallbacks, ignored features, decided conflicts.
    """

    partitioned: Program
    deployment: Deployment
    report: tuple[ReportEntry, ...] = ()


def lowering_of(problem: Problem, options: CompileOptions, store: Store | None = None) -> Lowering:
    """Returns the passes from plans of a problem to what ranks run."""
    return Lowering(
        options.cluster,
        problem.planner,
        options.phases_apart,
        store,
        options.pipeline,
        options.schedule,
        options.offloaded,
        options.update,
        functions=not options.phases_apart,
        widths=options.widths,
    )
