"""Which formulas and structures are recognized, and as what: a row for each.

A formula's row is tried before those below it. The result must have the shape and dtype of `x`, and
all between them the same dtype, unless the formula says where it is wider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.frontend.recognize.algebra import Match, formula, matches
from autopar.frontend.recognize.attention import attention
from autopar.frontend.recognize.dataflow import Dataflow, Instead
from autopar.frontend.recognize.places import from_the_front, in_order
from autopar.frontend.recognize.rotary import rotary
from autopar.ir.program import Arg, Op, Ref

ANY = frozenset(("f16", "bf16", "f32", "f64"))
WIDE = frozenset(("f32", "f64"))
"""Dtypes in which no square of an element that a model has is infinite."""

Args = Mapping[str, Arg]
Arguments = Callable[[Match, Dataflow], Args | None]
"""Returns the arguments of the op for a match; None if it isn't for that."""


@dataclass(frozen=True)
class Spelled:
    """An op, and the formulas by which files spell it out.

    Attributes:
        kind: The op.
        formulas: Texts; see `autopar.frontend.recognize.algebra`.
        args: Its arguments.
        dtypes: Those of `x` for which it is the same but for rounding.
    """

    kind: str
    formulas: tuple[str, ...]
    args: Arguments
    dtypes: frozenset[str] = ANY

    def __call__(self, root: Op, flow: Dataflow) -> Instead | None:
        """Returns the op, and what computes the same, if the result of `root` is a formula's."""
        if len(root.results) != 1:
            return None
        for text in self.formulas:
            for match in matches(formula(text), root.results[0], flow, Match()):
                args = self._args(match, root, flow)
                if args is not None:
                    op = replace(root, kind=self.kind, args=tuple(args.items()))
                    return Instead(match.ops, (op,))
        return None

    def _args(self, match: Match, root: Op, flow: Dataflow) -> Args | None:
        x, result = flow.value(match.tensors["x"]), flow.value(root.results[0])
        if (x.shape, x.dtype) != (result.shape, result.dtype) or x.dtype not in self.dtypes:
            return None
        if self.dtypes != NARROWED and not _same_dtype(match, flow, x.dtype):
            return None
        return self.args(match, flow) if flow.are_inner(match.ops, root) else None


NARROWED = frozenset(("f16", "bf16"))
"""Dtypes that formulas widen: those are the formulas that say where."""


def _same_dtype(match: Match, flow: Dataflow, dtype: str) -> bool:
    return all(flow.value(name).dtype == dtype for op in match.ops for name in op.results)


def elementwise(**more: Arg) -> Arguments:
    """Returns the arguments of a function of each element of `x`."""
    return lambda match, _: {"self": Ref(match.tensors["x"]), **more}


def normalized(match: Match, flow: Dataflow) -> Args | None:
    """Returns the arguments of a normalization along the last dimensions of `x`."""
    x = flow.value(match.tensors["x"])
    shape = x.shape[len(x.shape) - len(match.dims or ()) :]
    given = [name for name in ("weight", "bias") if name in match.tensors]
    fits = all(
        (flow.shape(match.tensors[name]), flow.value(match.tensors[name]).dtype) == (shape, x.dtype)
        for name in given
    )
    if not shape or not fits or not all(isinstance(size, int) for size in shape):
        return None
    args: dict[str, Arg] = {"input": Ref(match.tensors["x"]), "normalized_shape": shape}
    args |= {name: Ref(match.tensors[name]) for name in given}
    eps = match.numbers["eps"]
    return {**args, "eps": eps} if eps >= 0 else None


_CENTERED = "(x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps)"
_CENTERED_WIDE = _CENTERED.replace("x", "wide(x)")
_SCALED = "x / sqrt(mean(x**2) + eps)"
_SCALED_WIDE = _SCALED.replace("x", "wide(x)")

Pattern = Callable[[Op, Dataflow], Instead | None]
"""Returns what is written instead of what computes the result of an op; None for other ops."""

PATTERNS: Sequence[Pattern] = (
    attention,
    rotary,
    in_order,
    from_the_front,
    Spelled("aten.layer_norm.default", (f"weight * {_CENTERED} + bias",), normalized, WIDE),
    Spelled("aten.layer_norm.default", (f"weight * {_CENTERED}", _CENTERED), normalized, WIDE),
    Spelled(
        "aten.layer_norm.default",
        (f"weight * narrow({_CENTERED_WIDE}) + bias", f"weight * narrow({_CENTERED_WIDE})"),
        normalized,
        NARROWED,
    ),
    Spelled("aten.rms_norm.default", (f"weight * {_SCALED}", _SCALED), normalized, WIDE),
    Spelled(
        "aten.rms_norm.default",
        (f"weight * narrow({_SCALED_WIDE})", f"narrow({_SCALED_WIDE})"),
        normalized,
        NARROWED,
    ),
    Spelled(
        "aten.gelu.default",
        ("0.5 * x * (1 + erf(x / 1.4142135623730951))",),
        elementwise(),
    ),
    Spelled(
        "aten.gelu.default",
        (
            "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x**3)))",
            "0.5 * x * (1 + tanh(0.7978845608028654 * x * (1 + 0.044715 * x**2)))",
        ),
        elementwise(approximate="tanh"),
    ),
    Spelled("aten.silu.default", ("x * sigmoid(x)",), elementwise()),
    Spelled(
        "aten.hardswish.default",
        ("x * relu6(x + 3) / 6", "x * unit(x / 6 + 0.5)"),
        elementwise(),
    ),
    Spelled("aten.hardsigmoid.default", ("relu6(x + 3) / 6", "unit(x / 6 + 0.5)"), elementwise()),
)
"""What is recognized; the longer formula first."""
