"""Replaces torch's random ops by those that draw by counter.

Torch draws from a generator that each process advances on its own: ranks would disagree, and a
split would draw other numbers than the whole. The ops of `autopar.runtime.kernels.random_ops` draw
for each element what its place in the whole tensor, the op's number in the program and the
program's seed determine. The seed becomes an input, which is 0 unless it is given.

A random op that has no counterpart there (a gamma distribution, an op of another library) is
computed by every process alike, with torch's generator set by seed and number while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from autopar.frontend.lower.dropout import plain_dropouts
from autopar.ir.dtypes import FLOATS
from autopar.ir.program import (
    SEED,
    Arg,
    DType,
    Function,
    Op,
    Port,
    Program,
    Ref,
    Signature,
    Value,
)
from autopar.ir.rules.foreign import SEEDED, bare_kind

Args = Mapping[str, Arg]
Draw = tuple[str, dict[str, Arg]]
"""An op of our own, without `seed` and `number`, and its arguments."""


def draw_by_counter(program: Program) -> Program:
    """Returns a program whose random ops depend on its seed and on nothing else.

    Args:
        program: A serial program of one function.
    """
    main = plain_dropouts(program.main)
    if not any(map(_is_random, main.ops)):
        return program
    seed = _fresh("seed", main.values)
    labels = {port.label: None for port in program.signature.inputs}
    ops = tuple(_numbered(main, Ref(seed)))
    values = {**main.values, seed: Value(seed, "i64", (), SEED)}
    inputs = (*main.inputs, seed)
    function = _pruned(replace(main, inputs=inputs, values=values, ops=ops))
    port = Port(seed, _fresh("seed", labels), "i64", (), SEED)
    signature = Signature((*program.signature.inputs, port), program.signature.outputs)
    return replace(program.with_main(function), signature=signature)


def _numbered(main: Function, seed: Ref) -> Iterable[Op]:
    number = 0
    for op in main.ops:
        if not _is_random(op):
            yield op
            continue
        kind, args = _drawn(op, main.values)
        counted: dict[str, Arg] = {"seed": seed, "number": number}
        yield replace(op, kind=kind, args=(*args.items(), *counted.items()))
        number += 1


def _is_random(op: Op) -> bool:
    overload: Any = torch.ops
    for part in bare_kind(op.kind).split("."):
        overload = getattr(overload, part, None)
    if torch.Tag.nondeterministic_seeded not in getattr(overload, "tags", ()):
        return False
    names = {argument.name for argument in overload._schema.arguments}
    resting = "dropout_p" in names and not op.arg("dropout_p", 0.0)
    return not resting and all(
        op.arg(name, False) is not False for name in ("train", "training") if name in names
    )


def _drawn(op: Op, values: Mapping[str, Value]) -> Draw:
    builder = _DRAWS.get(op.kind)
    result = values[op.results[0]]
    found = builder(dict(op.args), result, values) if builder else None
    return found or (f"{SEEDED}{op.kind}", dict(op.args))


def _pruned(function: Function) -> Function:
    """Returns the function without the ops that made tensors to be filled."""
    needed = set(function.outputs)
    kept: list[Op] = []
    for op in reversed(function.ops):
        if not needed.isdisjoint(op.results):
            kept.append(op)
            needed.update(op.operands)
    defined = {*function.inputs, *(name for op in kept for name in op.results)}
    values = {name: value for name, value in function.values.items() if name in defined}
    return replace(function, values=values, ops=tuple(reversed(kept)))


def _fresh(name: str, taken: Mapping[str, object]) -> str:
    names = (name, *(f"{name}.{count}" for count in range(1, len(taken) + 2)))
    return next(each for each in names if each not in taken)


Builder = Callable[[dict[str, Arg], Value, Mapping[str, Value]], Draw | None]
"""(arguments by schema name, first result, values) -> the op that draws the same distribution."""

_HIGHEST: Mapping[str, int] = {
    "bool": 1,
    "i8": 2**7 - 1,
    "u8": 2**8 - 1,
    "i16": 2**15 - 1,
    "i32": 2**31 - 1,
    "i64": 2**63 - 1,
    "f16": 2**11,
    "bf16": 2**8,
    "f32": 2**24,
    "f64": 2**53,
}
"""The largest integer that aten.random draws."""


_ANY_DTYPE = ("autopar.bernoulli_p", "autopar.geometric")


def _of(kind: str, **renamed: str) -> Builder:
    """Returns the builder of a distribution: our parameter by name, and torch's name for it."""

    def build(args: dict[str, Arg], result: Value, values: Mapping[str, Value]) -> Draw | None:
        if kind not in _ANY_DTYPE and result.dtype not in FLOATS:
            return None
        given = {ours: args[theirs] for ours, theirs in renamed.items() if theirs in args}
        return kind, {**given, "size": result.shape, "dtype": DType(result.dtype)}

    return build


def _integers(args: dict[str, Arg], result: Value, values: Mapping[str, Value]) -> Draw | None:
    return _between(args.get("low", 0), args["high"], result)


def _random(args: dict[str, Arg], result: Value, values: Mapping[str, Value]) -> Draw | None:
    high = args.get("to")
    if high is None and result.dtype in _HIGHEST:
        high = _HIGHEST[result.dtype] + 1
    return _between(args.get("from", 0), high, result)


def _between(low: Arg, high: Arg, result: Value) -> Draw | None:
    if not isinstance(low, int) or not isinstance(high, int) or not 0 < high - low <= 2**63:
        return None
    args: dict[str, Arg] = {"low": low, "high": high}
    return "autopar.randint", {**args, "size": result.shape, "dtype": DType(result.dtype)}


def _bernoulli(args: dict[str, Arg], result: Value, values: Mapping[str, Value]) -> Draw | None:
    chance = args.get("p", args["self"])
    if not isinstance(chance, Ref):
        return None
    value = values[chance.name]
    alike = (value.shape, value.dtype) == (result.shape, result.dtype)
    return ("autopar.bernoulli", {"self": chance}) if alike else None


def _dropout(args: dict[str, Arg], result: Value, values: Mapping[str, Value]) -> Draw | None:
    return "autopar.dropout", {"self": args["input"], "p": args["p"]}


_RRELU = ("self", "lower", "upper")


def _rrelu(args: dict[str, Arg], result: Value, values: Mapping[str, Value]) -> Draw | None:
    return "autopar.rrelu", {name: arg for name, arg in args.items() if name in _RRELU}


def _permutation(args: dict[str, Arg], result: Value, values: Mapping[str, Value]) -> Draw | None:
    return "autopar.permutation", {"n": args["n"], "dtype": DType(result.dtype)}


def _multinomial(args: dict[str, Arg], result: Value, values: Mapping[str, Value]) -> Draw | None:
    return "autopar.multinomial", {key: arg for key, arg in args.items() if key != "generator"}


_NORMAL = _of("autopar.randn", mean="mean", std="std")
_UNIFORM = _of("autopar.rand", low="from", high="to")

_DRAWS: Mapping[str, Builder] = {
    "aten.rand.default": _UNIFORM,
    "aten.rand.generator": _UNIFORM,
    "aten.rand_like.default": _UNIFORM,
    "aten.rand_like.generator": _UNIFORM,
    "aten.uniform.default": _UNIFORM,
    "aten.randn.default": _NORMAL,
    "aten.randn.generator": _NORMAL,
    "aten.randn_like.default": _NORMAL,
    "aten.randn_like.generator": _NORMAL,
    "aten.normal_functional.default": _NORMAL,
    "aten.normal.float_float": _NORMAL,
    "aten.normal.Tensor_float": _NORMAL,
    "aten.normal.float_Tensor": _NORMAL,
    "aten.normal.Tensor_Tensor": _NORMAL,
    "aten.randint.default": _integers,
    "aten.randint.generator": _integers,
    "aten.randint.low": _integers,
    "aten.randint.low_generator": _integers,
    "aten.randint_like.default": _integers,
    "aten.randint_like.generator": _integers,
    "aten.randint_like.low_dtype": _integers,
    "aten.randint_like.low_generator_dtype": _integers,
    "aten.random.default": _random,
    "aten.random.from": _random,
    "aten.random.to": _random,
    "aten.bernoulli.default": _bernoulli,
    "aten.bernoulli.Tensor": _bernoulli,
    "aten.bernoulli.p": _of("autopar.bernoulli_p", p="p"),
    "aten.native_dropout.default": _dropout,
    "aten.rrelu_with_noise_functional.default": _rrelu,
    "aten.exponential.default": _of("autopar.exponential", lambd="lambd"),
    "aten.cauchy.default": _of("autopar.cauchy", median="median", sigma="sigma"),
    "aten.geometric.default": _of("autopar.geometric", p="p"),
    "aten.log_normal.default": _of("autopar.log_normal", mean="mean", std="std"),
    "aten.randperm.default": _permutation,
    "aten.randperm.generator": _permutation,
    "aten.multinomial.default": _multinomial,
}
