"""`autopar.explain`: what is known of a value and the op that makes it, or of all communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import overload

from autopar.analysis.explainable import Explainable, decided_of, program_with, value_named
from autopar.analysis.explanation.alternatives import (
    Alternative,
    op_alternatives,
    value_alternatives,
)
from autopar.analysis.explanation.communication import expenses
from autopar.analysis.explanation.show import Explanation, Overview, Reading
from autopar.analysis.explanation.why import reasons
from autopar.base.arguments import FLAG, TEXT, expect
from autopar.completion.presets.strategy import AUTO
from autopar.completion.search.watch import Progress, Watch
from autopar.cost import Cluster
from autopar.ir.ops import rule_of
from autopar.ir.program import Function, Op, Value
from autopar.ir.rules.distribution import consumed
from autopar.pipeline.arguments import CLUSTER
from autopar.pipeline.decided import Decided


@overload
def explain(
    what: Explainable, name: None = None, *, cluster: str | Cluster | None = None
) -> Overview: ...


@overload
def explain(
    what: Explainable,
    name: str,
    *,
    cluster: str | Cluster | None = None,
    alternatives: bool = True,
    tell: Callable[[Progress], None] | None = None,
) -> Explanation: ...


def explain(
    what: Explainable,
    name: str | None = None,
    *,
    cluster: str | Cluster | None = None,
    alternatives: bool = True,
    tell: Callable[[Progress], None] | None = None,
) -> Overview | Explanation:
    """Explains why a value is split as it is, or what of a program's communication costs most.

        >>> print(autopar.explain("build/", "layers.0.attention.weight"))  # doctest: +SKIP

    Args:
        what: A build folder, or what `compile` or `compile_onnx` returned.
        name: A value; None for the most expensive collectives.
        cluster: The hardware to predict for, if it isn't what the program was compiled for.
        alternatives: Whether to price other layouts of the value, or other choices of its op.
            The program is completed and lowered once for each.
        tell: Called before each of them, with how far it is.

    Raises:
        InvalidInputError: If there is no such build or value.
    """
    expect(TEXT.or_none, name=name)
    expect(CLUSTER.or_none, cluster=cluster)
    expect(FLAG, alternatives=alternatives)
    decided = decided_of(what)
    if cluster is not None:
        decided = decided.on(Cluster.load(cluster) if isinstance(cluster, str) else cluster)
    if name is None:
        found = expenses(decided)
        return Overview(decided.serial.name, decided.price(), found, decided.options.cluster.name)
    options = decided.options
    watch = None
    if alternatives:
        watch = Watch(options.time_limit, tell, effort=options.effort)
    return _explained(decided, value_named(decided, name), watch)


def _explained(decided: Decided, value: Value, watch: Watch | None) -> Explanation:
    main = program_with(decided, value.name).main
    value = main.values[value.name]
    op = main.producers().get(value.name)
    return Explanation(
        value,
        op,
        _rule_text(main, op),
        tuple(_readings(decided, main, value)),
        reasons(main, value),
        _alternatives(decided, value, op, watch) if watch is not None else (),
        "" if value.name in decided.completed.main.values else _end_of_body(decided, value.name),
        decided.options.cluster.name,
        is_searched=decided.options.strategy == AUTO,
    )


def _rule_text(main: Function, op: Op | None) -> str:
    rule = rule_of(op, main.values) if op is not None else None
    return str(rule.under(op.dist.body)) if rule and op and op.dist else ""


def _alternatives(
    decided: Decided, value: Value, op: Op | None, watch: Watch
) -> tuple[Alternative, ...]:
    if value.name not in decided.completed.main.values:
        return ()
    if op is None:
        return value_alternatives(decided, value, watch)
    return op_alternatives(decided, op, watch)


def _end_of_body(decided: Decided, name: str) -> str:
    """Returns the nearest value after a part of a body that was there before the body."""
    consumers = decided.serial.main.consumers()
    queue, seen = [name], {name}
    while queue:
        for result in (result for op in consumers[queue.pop(0)] for result in op.results):
            if result in decided.completed.main.values:
                return result
            if result not in seen:
                seen.add(result)
                queue.append(result)
    return ""


def _readings(decided: Decided, main: Function, value: Value) -> Iterator[Reading]:
    for op in main.ops:
        rule = rule_of(op, main.values) if value.name in op.operands else None
        if rule is not None and op.dist is not None and value.dist is not None:
            needed = consumed(rule, op.dist, op.operands.index(value.name))
            yield Reading(
                op, needed, decided.problem.planner.plan(value.dist, needed, value.itemsize)
            )
