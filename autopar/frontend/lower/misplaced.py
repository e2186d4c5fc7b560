"""Which parts of a model the user put into a stage before that of what they read.

Stages never decrease along a forward pass, so these run in the later one. The program knows only
where ops are, and not that the user wants them in the first stage: the graph does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import fx

from autopar.base.errors import Loc
from autopar.frontend.lower.exported import Lowering
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.mark import STAGE


def misplaced(graph: fx.Graph, lowering: Lowering) -> tuple[ReportEntry, ...]:
    """Returns a remark for each line where a part begins that runs in a later stage than it says.

    Args:
        graph: The graph of a step, in its order.
        lowering: What the exporter knows about it.
    """
    found: dict[tuple[Loc, int], ReportEntry] = {}
    for node, said, stage in _late(graph, lambda node: lowering.when(node).phase == "forward"):
        loc = lowering.locate(node)
        detail = f"this reads what is made in stage {stage}, and so runs there"
        entry = ReportEntry("ignored", f"pipeline_stage({said})", detail, loc)
        found.setdefault((loc, said), entry)
    return tuple(found.values())


def _late(
    graph: fx.Graph, is_forward: Callable[[fx.Node], bool]
) -> Iterator[tuple[fx.Node, int, int]]:
    """Yields the nodes that are first moved to a later stage: what was said, and the stage."""
    stages: dict[fx.Node, int] = {}
    moved: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not is_forward(node):
            continue
        said = (node.meta.get("custom") or {}).get(STAGE)
        read = {each: stages.get(each, 0) for each in node.all_input_nodes}
        stages[node] = stage = max((said or 0, *read.values()))
        if said is None or said >= stage:
            continue
        moved[node] = said
        # What follows a part that is moved is moved with it.
        if any(read[each] > said and moved.get(each) != said for each in read):
            yield node, said, stage
