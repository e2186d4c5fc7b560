"""Linear and cubic interpolation of images, whose parts need the pixels at their edges.

Where `b` pixels come from `a` at a time, a part of such blocks is resized together with the blocks
on both sides of it that it reads; what comes of those is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autopar.ir.expr.expression import IntExpr, common_factor, exact_quotient
from autopar.ir.expr.facts import can_exceed
from autopar.ir.ops.body import BodyWriter, body
from autopar.ir.ops.table import FIRST, TAP, RuleFunction, Table, factors
from autopar.ir.program import Arg, Ref
from autopar.ir.rules.local_arg import IfSplit, LocalArg, Sizes
from autopar.ir.rules.rule import Dims, OpCall, Rule, RuleError, as_number, build_rule
from autopar.ir.rules.window import Window

RESIZE = "autopar.resize"


@dataclass(frozen=True)
class Blocks:
    """One resized dimension, as blocks.

    Attributes:
        count: The number of blocks; 1 where the dimension can't be taken apart.
        small, large: Pixels of a block before and after.
        around: The blocks on either side that a part of them needs.
    """

    count: IntExpr
    small: IntExpr
    large: IntExpr
    around: int

    @property
    def window(self) -> Window:
        """The pixels that a block needs. Those beyond an edge are as the one at the edge."""
        small = as_number(self.small)
        beside = self.around * small
        return Window("", small, -beside, small + 2 * beside, "edge")


def _blocks(call: OpCall, name: str, ratios: tuple[Arg, ...]) -> list[Blocks]:
    count = SPATIAL[name]
    sizes = zip(call.operands[0].shape[-count:], call.results[0].shape[-count:], strict=True)
    pairs = zip(sizes, ratios, strict=True)
    return [_block(call, REACH[name], *ends, ratio) for ends, ratio in pairs]


def _block(call: OpCall, reach: int, small: IntExpr, large: IntExpr, ratio: Arg) -> Blocks:
    count = common_factor(small, large)
    few, many = exact_quotient(small, count), exact_quotient(large, count)
    if not (isinstance(few, int) and isinstance(many, int) and few):
        return Blocks(1, small, large, 0)
    if call.flag("align_corners") or ratio not in (None, many / few):
        return Blocks(1, small, large, 0)
    return Blocks(count, few, many, -(-reach // few))


def interpolation(name: str) -> RuleFunction:
    """Returns the rule function of one of the ops that `SPATIAL` names."""
    count = SPATIAL[name]
    scales = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}

    def rule(call: OpCall) -> Rule | None:
        given = call.args.get("scale_factors")
        ratios = given if isinstance(given, tuple) else tuple(map(call.args.get, scales[count]))
        dims = _blocks(call, name, ratios)
        own, split = _rule(call, name, dims, False), _rule(call, name, dims, True)
        if own.splittable == split.splittable:
            return own

        def write(w: BodyWriter) -> None:
            (x,) = w.op.operands
            target = w.value(w.op.results[0])
            args: dict[str, Arg] = {"self": Ref(x), "kind": name}
            args["size"] = target.global_shape[-count:]
            args["margin"] = (0,) * count
            w.emit(RESIZE, args, target.global_shape, target.dtype, target.name)

        return replace(own, bodies=(body("halo", split, write),))

    return rule


def resize(call: OpCall) -> Rule | None:
    """autopar.resize: an interpolation of which a margin of pixels is left out on all sides.

    Raises:
        RuleError: If there is no such interpolation.
    """
    name = str(call.args.get("kind"))
    if name not in SPATIAL:
        raise RuleError(f"{call.kind}: no interpolation {name!r}")
    blocks = _blocks(call, name, (None,) * SPATIAL[name])
    return _rule(call, name, blocks, True, told=True)


def _rule(call: OpCall, name: str, dims: list[Blocks], windowed: bool, told: bool = False) -> Rule:
    """Returns the rule of an interpolation.

    Args:
        call: The call.
        name: What it is.
        dims: The resized dimensions.
        windowed: Whether they may be split.
        told: Whether the op is told its size and margin.
    """
    lead = factors("i", len(call.operands[0].shape) - len(dims))
    large: Dims = tuple((f"y{at}", f"b{at}") for at in range(len(dims)))
    sizes: dict[str, IntExpr] = {f"y{at}": each.count for at, each in enumerate(dims)}
    sizes |= {f"b{at}": each.large for at, each in enumerate(dims)}
    windows = {
        f"x{at}": replace(each.window, of=f"y{at}")
        for at, each in enumerate(dims)
        if windowed and can_exceed(each.count, 1)
    }
    margin = (IfSplit(f"y{at}", _margin(each), 0) for at, each in enumerate(dims))
    local: dict[str, LocalArg] = {"size": Sizes(large), "margin": Sizes(tuple(margin))}
    fixed = [f"{side}{at}" for at in range(len(dims)) for side in "xb"]
    if not windowed:
        fixed.extend(f"y{at}" for at in range(len(dims)))
    return build_rule(
        call,
        [(*lead, *factors("x", len(dims)))],
        [(*lead, *large)],
        sizes=sizes,
        whole=fixed,
        windows=windows,
        local=local if told else None,
        linear=FIRST,
        work=TAP * (4 if name in CUBIC else 2) ** len(dims),
        aside=[f"x{at}" for at in range(len(dims))],
    )


def _margin(blocks: Blocks) -> int:
    return blocks.around * as_number(blocks.large) if blocks.around else 0


SPATIAL = {
    "upsample_linear1d": 1,
    "upsample_bilinear2d": 2,
    "upsample_bicubic2d": 2,
    "upsample_trilinear3d": 3,
}
"""How many dimensions each interpolation resizes."""

CUBIC = ("upsample_bicubic2d",)
"""Those that are made of four pixels per dimension; the others are of two."""

REACH = {name: 2 if name in CUBIC else 1 for name in SPATIAL}
"""How far beyond its own block an interpolation reads, in pixels."""

RULES: Table = {
    **{
        f"aten.{name}.{overload}": interpolation(name)
        for name in SPATIAL
        for overload in ("default", "vec")
    },
    RESIZE: resize,
}
