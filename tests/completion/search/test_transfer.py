"""Tables promise what reshards take, as far as sums travel together."""

from __future__ import annotations

import pytest

from autopar.completion.problem.space import Space
from autopar.completion.search.network.transfer import Ends, Tensors, Transfers
from autopar.completion.search.watch import Watch
from autopar.cost import Cluster
from autopar.ir.expr.expression import IntExpr, Size
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh

GROUP = "update"
OPEN = Size("n", 0, 512, planned=8)


def pending(rows: IntExpr) -> tuple[Transfers, Ends, Ends]:
    """Returns tables, and the ends of a sum that is pending and then nowhere."""
    space = Space(ProcessMesh.of_shape((4,)), Cluster.load("cpu"))
    whole = space.replicated((rows, 16))
    axis = space.axes[0]
    summed = space.form(Layout(space.mesh, whole.layout.dims, ((axis, "sum"),)))
    transfers = Transfers(space, {GROUP: 1 << 20}, Watch())
    return transfers, transfers.ends([summed]), transfers.ends([whole])


@pytest.mark.parametrize(("rows", "is_joined"), [(8, True), (OPEN, False)])
def test_sums_of_open_sizes_are_alone(rows: IntExpr, is_joined: bool) -> None:
    """So nothing is to be learned of them once they are planned."""
    transfers, source, target = pending(rows)
    ((seconds,),) = transfers.reshard_seconds(source, target, Tensors(4, GROUP))
    ((alone,),) = transfers.reshard_seconds(source, target, Tensors(4))
    assert (seconds < 0.5 * alone) == is_joined
    move = source, source.forms[0], target, target.forms[0], Tensors(4, GROUP)
    assert not transfers.learn([move])
