"""Random ops: every element's number depends on its place in the whole tensor, nothing else.

So each dimension may be split. A shard gets the grid of its elements, and draws what the whole op
would have drawn there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.ir.expr.expression import planned
from autopar.ir.ops.elementwise.pointwise import broadcast_dims
from autopar.ir.ops.table import Table, factors, operand_dims, same
from autopar.ir.rules.local_arg import Grid, LocalArg, Sizes
from autopar.ir.rules.rule import Dims, OpCall, Rule, build_rule

NO_ARGS: Mapping[str, LocalArg] = {}

WORK = 10
"""Integer operations that an element's bits take."""


def drawn(call: OpCall) -> Rule | None:
    """Numbers of one distribution, whose parameters may be tensors that broadcast."""
    shape = call.results[0].shape
    dims = broadcast_dims(shape, shape)
    by_name: dict[str, Dims] = {"seed": ()}
    for name in ("mean", "std"):
        tensor = call.tensor(name)
        if tensor is not None:
            by_name[name] = broadcast_dims(tensor.shape, shape)
    local: dict[str, LocalArg] = {"size": Sizes(dims)}
    operands = operand_dims(call, by_name)
    return _placed(call, operands, [dims], dims, local)


def chosen(call: OpCall) -> Rule | None:
    """One decision per element of the first operand."""
    dims = factors("i", len(call.operands[0].shape))
    operands = operand_dims(call, {"self": dims, "seed": ()})
    results = [dims] * len(call.results)
    return _placed(call, operands, results, dims)


def _placed(
    call: OpCall,
    operands: Sequence[Dims],
    results: Sequence[Dims],
    dims: Dims,
    local: Mapping[str, LocalArg] = NO_ARGS,
) -> Rule:
    """Returns a rule of an op that draws by the places of its elements.

    An op that has a part of a tensor already, a block of each dimension, may be split further; of
    a part that is no such block all is drawn.

    Args:
        call: The op.
        operands, results: Their factors.
        dims: Those by which elements are counted.
        local: Other arguments that depend on the shard.
    """
    given, names = call.args.get("grid"), [name for dim in dims for name in dim]
    if not isinstance(given, tuple):
        found = {**local, "grid": Grid(dims)}
        return build_rule(call, operands, results, local=found, work=WORK)
    if len(given) != len(names):
        return build_rule(call, operands, results, whole=names, work=WORK)
    base = tuple((entry[0], entry[2]) for entry in given if isinstance(entry, tuple))
    found = {**local, "grid": Grid(dims, base)}  # type: ignore[arg-type]
    return build_rule(call, operands, results, local=found, work=WORK)


def permutation(call: OpCall) -> Rule | None:
    """A permutation, which every process draws by itself."""
    return build_rule(call, [()], [(("n",),)], whole=("n",), work=WORK)


def multinomial(call: OpCall) -> Rule | None:
    """Samples of rows. Their numbers go with the samples, or without replacement with the rows."""
    rows = factors("b", len(call.operands[0].shape) - 1)
    given, samples = (*rows, ("c",)), (*rows, ("s",))
    categories, count = (
        planned(tensor.shape[-1]) for tensor in (*call.operands[:1], call.results[0])
    )
    return build_rule(
        call,
        operand_dims(call, {"self": given, "seed": ()}),
        [samples],
        # One that has some of the rows only draws them all by itself.
        whole=("c", "s", *(name for (name,) in rows if "grid" in call.args)),
        local={}
        if "grid" in call.args
        else {"grid": Grid(samples if call.flag("replacement") else given)},
        work=WORK,
        aside=("s",) if categories > count else "c",
    )


RULES: Table = {
    **same(
        [
            "autopar.rand",
            "autopar.randn",
            "autopar.randint",
            "autopar.bernoulli_p",
            "autopar.exponential",
            "autopar.cauchy",
            "autopar.log_normal",
            "autopar.geometric",
        ],
        drawn,
    ),
    **same(["autopar.bernoulli", "autopar.dropout", "autopar.rrelu"], chosen),
    "autopar.permutation": permutation,
    "autopar.multinomial": multinomial,
}
