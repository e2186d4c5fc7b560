"""Which ops have no rule on purpose, and that every other op of core ATen has one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from autopar.base.errors import Loc
from autopar.ir.ops import RULES, TABLES, RuleDefect, rule_of
from autopar.ir.program import Op, Ref, Value
from tests.ops.sample import is_op

NO_RULE = {
    "replaced by an op of ours that draws by counter": (
        "aten.bernoulli.p aten.native_dropout.default aten.rand.default aten.randn.default"
        " aten.randperm.default"
    ),
    "shape depends on the data": (
        "aten.nonzero.default aten._local_scalar_dense.default aten.masked_select.default"
        " aten.bincount.default aten._unique.default aten._unique2.default aten.unique_dim.default"
        " aten.unique_consecutive.default aten.repeat_interleave.Tensor"
    ),
    "an element's place depends on all before it": (
        "aten.nonzero_static.default aten.masked_scatter_backward.default"
    ),
    "depends on strides": (
        "aten.as_strided.default aten.as_strided_copy.default aten.as_strided_scatter.default"
        " aten.empty_strided.default"
    ),
}


def core_overloads() -> Iterator[str]:
    """Yields the functional overloads of core ATen that produce tensors."""
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
        found = getattr(packet, overload or "default", None)
        if found is None or torch.Tag.core not in found.tags or found._schema.is_mutable:
            continue
        if name.startswith("sym_"):
            continue
        yield f"aten.{name}.{overload or 'default'}"


def test_core_aten_is_covered() -> None:
    known = {kind for kinds in NO_RULE.values() for kind in kinds.split()}
    assert sorted(set(core_overloads()) - set(RULES) - known) == []
    assert sorted(known & set(RULES)) == []


def test_an_op_has_one_row() -> None:
    kinds = [kind for table in TABLES for kind in table]
    assert sorted(kinds) == sorted(RULES)


def test_no_rule_writes_an_operand() -> None:
    """Ops that write have no rule; those that only do so in training have none for it."""
    for kind in RULES:
        if kind.startswith("aten.") and is_op(kind):
            _, name, overload = kind.split(".")
            assert not getattr(getattr(torch.ops.aten, name), overload)._schema.is_mutable, kind
    channels = {name: Value(name, "f32", (3,)) for name in ("mean", "var", "m", "v")}
    values = {**channels, **{name: Value(name, "f32", (2, 3)) for name in ("x", "y")}}
    for training in (True, False):
        args = {"input": Ref("x"), "weight": None, "bias": None, "running_mean": Ref("mean")}
        op = Op(
            "aten.native_batch_norm.default",
            (*args.items(), ("running_var", Ref("var")), ("training", training)),
            ("y", "m", "v"),
        )
        assert (rule_of(op, values) is None) == training


def test_a_failing_rule_names_the_op_and_its_place() -> None:
    values = {"y": Value("y", "f32", (3,))}
    op = Op("aten.sum.dim_IntList", (("self", 1.5), ("dim", (0,))), ("y",), loc=Loc("net.py", 7))
    with pytest.raises(RuleDefect, match=r"net.py:7: the rule of aten.sum.dim_IntList fails for"):
        rule_of(op, values)
