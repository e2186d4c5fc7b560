"""Resizing of images along their last dimensions, and its gradients.

Pixels are made of their neighbours, so that the resized dimensions are whole. But where the
nearest one is copied, `b` pixels come from `a` at a time, and such blocks may be split. (For other
interpolations see `interpolation`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autopar.ir.expr.expression import IntExpr, common_factor, exact_quotient
from autopar.ir.ops.image.interpolation import SPATIAL
from autopar.ir.ops.table import FIRST, TAP, RuleFunction, Table, factors
from autopar.ir.rules.local_arg import LocalArg, Sizes
from autopar.ir.rules.rule import OpCall, Rule, build_rule

SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
"""The arguments that may give the ratio of sizes, by the number of resized dimensions."""


@dataclass
class Resized:
    """The factors of resized dimensions.

    Attributes:
        small, large: Of the image before and after. The gradient goes back.
        sizes: Their sizes.
        whole: Those that must not be split.
    """

    small: list[tuple[str, ...]] = field(default_factory=list)
    large: list[tuple[str, ...]] = field(default_factory=list)
    sizes: dict[str, IntExpr] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)


def resizing(
    spatial: int, nearest: bool = False, backward: bool = False, cubic: bool = False
) -> RuleFunction:
    """Returns the rule function of a resizing of the last dimensions.

    Args:
        spatial: How many dimensions are resized.
        nearest: Whether each pixel is the nearest one's copy.
        backward: Whether it is the gradient, of an image of this size.
        cubic: Whether a pixel is made of four per dimension and not of two.
    """

    def rule(call: OpCall) -> Rule | None:
        tensors = (call.results[0].shape, call.operands[0].shape)
        before, after = tensors if backward else reversed(tensors)
        lead = factors("i", len(before) - spatial)
        found = _resized(call, before[-spatial:], after[-spatial:], nearest)
        small, large = (*lead, *found.small), (*lead, *found.large)
        local: dict[str, LocalArg] = {}
        if call.args.get("output_size") is not None:
            local["output_size"] = Sizes(large[-spatial:])
        if backward:
            local["input_size"] = Sizes(small)
        return build_rule(
            call,
            [large if backward else small],
            [small if backward else large],
            sizes=found.sizes,
            whole=found.whole,
            local=local,
            linear=FIRST,
            work=0 if nearest else TAP * (4 if cubic else 2) ** spatial,
            aside=[f"a{at}" for at in range(spatial)] if not nearest else (),
        )

    return rule


def _resized(
    call: OpCall, before: Sequence[IntExpr], after: Sequence[IntExpr], nearest: bool
) -> Resized:
    found = Resized()
    for at, (small, large) in enumerate(zip(before, after, strict=True)):
        outer: tuple[str, ...] = ()
        block = common_factor(small, large)
        pixels = _pixels(small, large, block)
        if nearest and pixels and _exact(call, at, *pixels, len(before)):
            outer = (f"y{at}",)
            found.sizes[f"y{at}"] = block
            small, large = pixels
        for side, name, size in ((found.small, f"a{at}", small), (found.large, f"b{at}", large)):
            if size == 1 and outer:
                side.append(outer)
                continue
            side.append((*outer, name))
            found.sizes[name] = size
            found.whole.append(name)
    return found


def _pixels(small: IntExpr, large: IntExpr, block: IntExpr) -> tuple[int, int] | None:
    """Returns the pixels of a block before and after, of so many blocks; None without numbers."""
    few, many = exact_quotient(small, block), exact_quotient(large, block)
    return (few, many) if isinstance(few, int) and isinstance(many, int) else None


def _exact(call: OpCall, at: int, few: int, many: int, count: int) -> bool:
    """Whether kernels find the pixels that the sizes say: multiples of few / many, unrounded."""
    given = call.args.get("scale_factors")
    ratio = given[at] if isinstance(given, tuple) else call.args.get(SCALES[count][at])
    if ratio is None:
        return _is_power_of_two(many)
    return ratio == many / few and _is_power_of_two(many) and _is_power_of_two(few)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


ANTIALIASED = {"_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 2}
"""How many dimensions each resizes."""

NEAREST = {
    f"{name}{n}d": n for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)
}

RULES: Table = {
    **{
        f"aten.{name}.{overload}": resizing(n, name in NEAREST, cubic="cubic" in name)
        for name, n in {**ANTIALIASED, **NEAREST}.items()
        for overload in ("default", "vec")
    },
    **{
        f"aten.{name}_backward.default": resizing(
            n, name in NEAREST, backward=True, cubic="cubic" in name
        )
        for name, n in {**SPATIAL, **ANTIALIASED, **NEAREST}.items()
    },
}
