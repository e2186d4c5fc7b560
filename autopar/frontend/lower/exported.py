"""What whoever exported a graph says about it: its placeholders, its outputs, names and places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from autopar.base.errors import UNKNOWN, Loc
from autopar.frontend.lower.open_sizes import OpenSizes
from autopar.frontend.lower.source_line import source_line
from autopar.ir.assumptions import Assumption
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Arg, Lifetime


@dataclass(frozen=True, slots=True)
class GraphInput:
    """What a placeholder is.

    Attributes:
        name: Name of its value.
        role: A role of `autopar.ir.program.ROLES`.
        label: The user's name for it; the value's if empty.
        loc: Where it comes from.
        kept: Whether it stays an input of the program even if nothing reads it.
        fill: What all its elements are unless something else is given.
        aliases: The user's other names for it.
        options: See `Port`.
    """

    name: str
    role: str
    label: str = ""
    loc: Loc = UNKNOWN
    kept: bool = True
    fill: float | None = None
    aliases: tuple[str, ...] = ()
    options: tuple[tuple[str, Arg], ...] = ()


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """A value that the program returns.

    Attributes:
        node: What computes it.
        label: The user's name for it.
        updates: The placeholder whose new content it is, if it is one's. It is stored as that is.
        assumed: Of a scalar: what it must be in each run.
        written: Whether it is what forward writes to the input of this label.
    """

    node: fx.Node
    label: str
    updates: fx.Node | None = None
    assumed: Assumption | None = None
    written: bool = False


@dataclass(frozen=True)
class Lowering:
    """What the exporter knows about its graph.

    Attributes:
        inputs: What each placeholder is, by node; in the order of the program's inputs. A
            placeholder that isn't here must not be used.
        outputs: What the program returns. Whatever they don't need is dropped.
        names: Names of values, by the node that computes them. Others get the node's name.
        locate: Where a node comes from; by default the line that torch noted.
        name: Name of the program.
        when: Phase and microbatch, or loop, of a node.
        mesh: The mesh that the program is compiled for, which marks that name none are on. If it
            isn't known, it is the marks'.
        sizes: The open sizes in shapes of the graph.
    """

    inputs: Mapping[fx.Node, GraphInput]
    outputs: Sequence[GraphOutput]
    names: Mapping[fx.Node, str] = field(default_factory=dict)
    locate: Callable[[fx.Node], Loc] = source_line
    name: str = ""
    when: Callable[[fx.Node], Lifetime] = lambda node: Lifetime("forward")
    mesh: ProcessMesh | None = None
    sizes: OpenSizes = field(default_factory=OpenSizes)
