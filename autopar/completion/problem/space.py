"""Space: the layouts and costs that completion works with, each computed once.

Layouts are interned as `Form`s, and what is derived from one (a reshard's cost, the form without an
axis) is remembered with it. So repeated layers cost next to nothing, and nothing depends on the
number of processes.
"""

from __future__ import annotations

import math

from autopar.completion.problem.splits import Splits, SplitTable
from autopar.cost import Cluster, CommunicationModel, Reshard, ReshardPlanner
from autopar.cost.evaluation import Evaluator
from autopar.cost.windows import WindowWay
from autopar.ir.expr.expression import IntExpr, planned
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Value


class Form:
    """An interned layout: equal layouts are the same form.

    Attributes:
        layout: The layout, normalized.
        splits: The same as splits of its dimensions.
        seconds: Known costs of reshards from here, by target and bytes per element.
        least_seconds: Known bounds on them.
        only: The form with a single axis left, by axis.
    """

    __slots__ = ("complete", "layout", "least_seconds", "only", "parts", "seconds", "splits")

    layout: Layout
    splits: Splits
    seconds: dict[tuple[Form, int], float]
    least_seconds: dict[tuple[Form, int], float]
    only: dict[str, Form]
    complete: Form | None
    parts: int | None

    def __init__(self, layout: Layout, splits: Splits) -> None:
        self.layout = layout
        self.splits = splits
        self.seconds = {}
        self.least_seconds = {}
        self.only = {}
        self.complete = None
        self.parts = None


class Windows:
    """Windows through which a tensor is read, interned like forms.

    Attributes:
        blocks: The form in which they are nearest.
        ways: The forms from which they can be made, and the seconds from there.
    """

    __slots__ = ("blocks", "ways")

    def __init__(self, ways: tuple[tuple[Form, float], ...]) -> None:
        self.blocks = ways[0][0]
        self.ways = ways


Need = Form | Windows
"""How an op reads a value."""


class Space:
    """Interns layouts over a mesh and prices them on a cluster.

    Args:
        mesh: The program's mesh.
        cluster: The hardware whose costs decide.
        planner: Of reshards on this mesh and cluster, if there is one already.
    """

    def __init__(
        self, mesh: ProcessMesh, cluster: Cluster, planner: ReshardPlanner | None = None
    ) -> None:
        self.mesh = mesh
        self.cluster = cluster
        self.axes = tuple(axis for axis in mesh.dim_names if mesh.axis_size(axis) > 1)
        self.table = SplitTable(mesh)
        self.planner = planner or ReshardPlanner(CommunicationModel(cluster, mesh))
        self.evaluator = Evaluator.of_ops(self.planner.model)
        self._planners: dict[str, ReshardPlanner] = {}
        self._forms: dict[Layout, Form] = {}
        self._of_splits: dict[tuple[Splits, tuple[IntExpr, ...]], Form] = {}
        self._replicated: dict[tuple[IntExpr, ...], Form] = {}
        self._windows: dict[tuple[tuple[WindowWay, ...], str], Windows] = {}

    def form(self, layout: Layout) -> Form:
        """Returns the form of a layout."""
        found = self._forms.get(layout)
        if found is None:
            normal = layout.normalized()
            found = self._forms.get(normal)
            if found is None:
                splits = self.table.splits_of(dict(enumerate(normal.dims)))
                found = self._forms[normal] = Form(normal, splits)
            self._forms[layout] = found
        return found

    def replicated(self, shape: tuple[IntExpr, ...]) -> Form:
        """Returns the form in which every process holds all of a tensor of this shape."""
        found = self._replicated.get(shape)
        if found is None:
            found = self._replicated[shape] = self.form(Layout.replicated(self.mesh, shape))
        return found

    def windows(self, ways: tuple[WindowWay, ...], dtype: str) -> Windows:
        """Returns the windows that are made in one of these ways of a tensor of this type."""
        key = ways, dtype
        found = self._windows.get(key)
        if found is None:
            priced = [(self.form(w.layout), w.local_seconds(dtype, self.evaluator)) for w in ways]
            found = self._windows[key] = Windows(tuple(priced))
        return found

    def of_splits(self, splits: Splits, shape: tuple[IntExpr, ...]) -> Form:
        """Returns the form of a tensor of this shape that is split so."""
        whole = self.replicated(shape)
        if not splits.items:
            return whole
        key = (splits, shape)
        found = self._of_splits.get(key)
        if found is None:
            dims = tuple(
                splits.items.get(number, dim) for number, dim in enumerate(whole.layout.dims)
            )
            found = self._of_splits[key] = self.form(Layout(self.mesh, dims))
        return found

    def complete(self, form: Form) -> Form:
        """Returns the form after every pending reduction is done."""
        if form.complete is None:
            form.complete = self.form(form.layout.without_partial())
        return form.complete

    def only(self, form: Form, axis: str) -> Form:
        """Returns the form as it would be if the mesh had only one axis."""
        found = form.only.get(axis)
        if found is None:
            dims = tuple(self.table.restrict(dim, (axis,)) for dim in form.layout.dims)
            partial = tuple(pair for pair in form.layout.partial if pair[0] == axis)
            found = form.only[axis] = self.form(Layout(self.mesh, dims, partial))
        return found

    def is_gathered(self, form: Form, first: Form) -> bool:
        """Whether a form has larger pieces than the one in which a value is at first."""
        return self.parts(form) < self.parts(first)

    def parts(self, form: Form) -> int:
        """Returns into how many different pieces a form splits a tensor."""
        if form.parts is None:
            form.parts = self.mesh.axes_size(form.layout.sharded_axes)
        return form.parts

    def reshard_seconds(
        self, source: Form, target: Form, itemsize: int, *, deferred: bool = False
    ) -> float:
        """Returns the predicted seconds of a reshard, of a deferred value by itself."""
        if source is target:
            return 0.0
        if deferred and source.layout.partial:
            return self.plan(source, target, itemsize, deferred=True).seconds
        key = (target, itemsize)
        found = source.seconds.get(key)
        if found is None:
            found = source.seconds[key] = self.plan(source, target, itemsize).seconds
        return found

    def least_seconds(self, source: Form, target: Form, itemsize: int) -> float:
        """Returns seconds that a reshard takes at least, without planning it."""
        if source is target:
            return 0.0
        key = (target, itemsize)
        found = source.seconds.get(key)
        if found is None:
            found = source.least_seconds.get(key)
        if found is None:
            found = self.planner.least_seconds(source.layout, target.layout, itemsize)
            source.least_seconds[key] = found
        return found

    def plan(self, source: Form, target: Form, itemsize: int, *, deferred: bool = False) -> Reshard:
        """Returns the way from one form to another.

        Args:
            source: Where it begins.
            target: Where it leads.
            itemsize: Bytes per element.
            deferred: Whether nobody waits for the value (`cost.reshard.deferred_sums`).
        """
        planner = self.planner.deferred if deferred else self.planner
        return planner.plan(source.layout, target.layout, itemsize)

    def least_fan_out_seconds(self, source: Form, targets: list[Form], itemsize: int) -> float:
        """Returns seconds that `fan_out_seconds` are at least: those of the slowest reshard."""
        return max((self.least_seconds(source, t, itemsize) for t in targets), default=0.0)

    def planner_along(self, axis: str) -> ReshardPlanner:
        """Returns the planner of forms that a single axis splits, as if there were no other."""
        found = self._planners.get(axis)
        if found is None:
            found = self._planners[axis] = ReshardPlanner(self.planner.model, (axis,))
        return found

    def fan_out_seconds(self, source: Form, targets: list[Form], itemsize: int) -> float:
        """Returns the seconds to reshard from one form to several, which may build on another."""
        if len(targets) == 1:
            return self.reshard_seconds(source, targets[0], itemsize)
        direct = [(self.reshard_seconds(source, target, itemsize), target) for target in targets]
        direct.sort(key=lambda pair: -pair[0])
        total = 0.0
        done: list[Form] = []
        for seconds, target in direct:
            if seconds:
                total += min(
                    [seconds, *(self.reshard_seconds(other, target, itemsize) for other in done)]
                )
            done.append(target)
        return total


def bytes_of(value: Value) -> int:
    """Returns the bytes of a whole value of a serial program, at the planned sizes."""
    return math.prod(map(planned, value.global_shape)) * value.itemsize
