"""Sample calls of ops, and the tensors in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from autopar.ir.ops import RULES, rule_of
from autopar.ir.program import Arg, DType, Op, Ref, Value, refs
from autopar.ir.rules.rule import OpCall, Rule, TensorType
from autopar.runtime.kernels.table import IR_DTYPES, kernel, to_torch
from autopar.runtime.ports.nested import tensors_in


def f(*shape: int, low: float = -2.0, high: float = 2.0, dtype: Any = torch.float64) -> Tensor:
    """Returns random floats; the same for the same shape, but not along a dimension."""
    generator = torch.Generator().manual_seed(sum((at + 7) * n for at, n in enumerate(shape)))
    values = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (values * (high - low) + low).to(dtype)


def i(*shape: int, low: int = -5, high: int = 9, dtype: Any = torch.int64) -> Tensor:
    """Returns random integers, `high` excluded."""
    generator = torch.Generator().manual_seed(sum((at + 3) * n for at, n in enumerate(shape)))
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def b(*shape: int) -> Tensor:
    """Returns random booleans."""
    return i(*shape, low=0, high=2).bool()


def c(*shape: int) -> Tensor:
    """Returns random complex numbers."""
    return torch.complex(f(*shape), f(*shape[:-1], shape[-1] + 1)[..., 1:])


@dataclass(frozen=True)
class Sample:
    """A call of an op: tensors, and the other arguments as torch takes them, by schema name."""

    kind: str
    args: Mapping[str, Any]

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The operands, in order."""
        return [tensor for value in self.args.values() for tensor in tensors_in(value)]

    @cached_property
    def ir_args(self) -> dict[str, Arg]:
        """The arguments as a program holds them; operand number n is the value `xn`."""
        count = iter(range(len(self.tensors)))
        return {name: _to_ir(value, count) for name, value in self.args.items()}

    @cached_property
    def results(self) -> list[Tensor]:
        """What the op computes."""
        return compute(self.kind, self.ir_args, self.tensors)

    @cached_property
    def op(self) -> Op:
        """The op, with results `y0`, `y1`, ..."""
        names = tuple(f"y{at}" for at in range(len(self.results)))
        return Op(self.kind, tuple(self.ir_args.items()), names)

    @cached_property
    def values(self) -> dict[str, Value]:
        """The operands and results as values."""
        named = [(f"x{at}", tensor) for at, tensor in enumerate(self.tensors)]
        named += [(f"y{at}", tensor) for at, tensor in enumerate(self.results)]
        return {
            name: Value(name, IR_DTYPES[tensor.dtype], tuple(tensor.shape))
            for name, tensor in named
        }

    @cached_property
    def call(self) -> OpCall:
        """What the rule is a function of."""
        types = tuple(
            tuple(TensorType(tuple(t.shape), IR_DTYPES[t.dtype]) for t in tensors)
            for tensors in (self.tensors, self.results)
        )
        return OpCall(self.kind, self.ir_args, *types)

    @cached_property
    def rule(self) -> Rule | None:
        """The rule, with errors raised."""
        return RULES[self.kind](self.call)

    @property
    def has_rule(self) -> bool:
        """Whether the op has a rule, and it fits this call."""
        return rule_of(self.op, self.values) is not None

    def __str__(self) -> str:
        shapes = [list(tensor.shape) for tensor in self.tensors]
        return f"{self.kind} {shapes} {dict(self.ir_args)}"


def s(kind: str, *positional: Any, **named: Any) -> Sample:
    """Returns a sample of an op of `aten`, its arguments by position or name as in its schema."""
    full = (
        kind
        if kind.startswith(("quantized_decomposed.", "prims.", "transformers."))
        else f"aten.{kind}"
    )
    if full.count(".") == 1:
        full = f"{full}.default"
    if not is_op(full):
        return Sample(full, named)
    namespace, name, overload = full.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema
    names = [argument.name for argument in schema.arguments]
    given = {**dict(zip(names, positional, strict=False)), **named}
    return Sample(full, {name: given[name] for name in names if name in given})


def is_op(kind: str) -> bool:
    """Whether the installed version of PyTorch has an op, if it is one of PyTorch's own."""
    namespace, *name = kind.split(".")
    if namespace != "aten":
        return True
    packet = getattr(torch.ops.aten, name[0], None)
    return packet is not None and hasattr(packet, name[1])


def compute(kind: str, args: Mapping[str, Arg], tensors: list[Tensor]) -> list[Tensor]:
    """Runs an op's kernel with these operands in the place of its references."""
    remaining = iter(tensors)
    found = kernel(kind)(**{name: _to_torch(arg, remaining) for name, arg in args.items()})
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _to_ir(value: Any, count: Iterator[int]) -> Arg:
    if isinstance(value, Tensor):
        return Ref(f"x{next(count)}")
    if isinstance(value, (list, tuple)):
        return tuple(_to_ir(item, count) for item in value)
    if isinstance(value, torch.dtype):
        return DType(IR_DTYPES[value])
    converted: Arg = value
    return converted


def _to_torch(arg: Arg, remaining: Iterator[Tensor]) -> Any:
    if isinstance(arg, Ref):
        return next(remaining)
    if isinstance(arg, tuple) and any(True for _ in refs(arg)):
        return [_to_torch(item, remaining) for item in arg]
    return to_torch(arg)
