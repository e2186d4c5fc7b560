"""What completion says of every way to split an op is what the evaluator finds on the ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autopar.annotate import apply_mesh
from autopar.completion import Legalize
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Space
from autopar.completion.propagate.bodies import calls_on
from autopar.completion.propagate.solve import Solution
from autopar.completion.write import write_solution
from autopar.cost import Cluster
from autopar.cost.evaluation import evaluate
from autopar.ir.dims import DimLayout, normalize_dim
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Port, Program, Signature
from autopar.ir.rules.rule import Rule
from autopar.partition import Coalesce, Partition, Prefetch
from tests.ops.sample import Sample
from tests.ops.samples import RUN, samples_by_kind
from tests.ops.split_run_combine import single_splits

EXACT = 1e-6
"""Relative difference from the evaluator."""

CLUSTER = Cluster.load("h100")


def program_of(sample: Sample) -> Program:
    """Returns the program of one op, which reads inputs and leaves outputs."""
    op, values = sample.op, sample.values
    ports = {n: Port(n, n, value.dtype, value.global_shape, "input") for n, value in values.items()}
    inputs = tuple(name for name in values if name not in op.results)
    main = Function("main", inputs, op.results, values, (op,))
    signature = Signature(tuple(map(ports.get, inputs)), tuple(map(ports.get, op.results)))
    return Program({"main": main}, signature)


def splits(rule: Rule) -> Iterator[tuple[str, DimLayout, ProcessMesh]]:
    """Yields ways to split a factor of an op or a body, as (factor, its layout, mesh)."""
    for each in (rule, *(body.rule for body in rule.bodies)):
        for factor in each.splittable:
            if each is rule or factor not in rule.splittable:
                for dim, mesh in single_splits(each, factor):
                    yield factor, dim, mesh


def check(program: Program, factor: str, dim: DimLayout, mesh: ProcessMesh) -> None:
    """Checks the seconds of one way to split an op, if it can be split so."""
    placed = apply_mesh(program, mesh)
    main, space = placed.main, Space(mesh, CLUSTER)
    graph = Graph(space, calls_on(space), main.ops, main.values, main.outputs)
    (node,) = graph.nodes
    choice = node.call.choice(space.table.splits_of({factor: normalize_dim(dim, mesh)}))
    if choice is None:
        return
    assert node.call.divided_seconds <= choice.seconds * (1 + EXACT)
    solution = _solution(graph, choice)
    done = placed.with_main(write_solution(main, solution))
    ranks = Partition(CLUSTER, space.planner)(Legalize(CLUSTER, space.planner)(done))
    joined = Prefetch()(Coalesce(CLUSTER)(ranks))
    seconds = evaluate(joined, CLUSTER).serialized_seconds
    assert solution.seconds == pytest.approx(seconds, rel=EXACT, abs=1e-15), f"{choice.dist}"


def _solution(graph: Graph, choice: Choice) -> Solution:
    complete = graph.space.complete
    around = zip(graph.nodes[0].tensors, (*choice.consumed, *choice.produced), strict=True)
    found = {value: complete(form) for value, form in around}
    forms = [found[value] for value in range(len(graph.values))]
    none: list[dict[str, int]] = [{} for _ in forms]
    return Solution(graph, [choice], forms, [{}], none, frozenset())


@pytest.mark.parametrize("letter", sorted({kind.split(".")[1][0] for kind in RUN}))
def test_the_seconds_of_a_split_op_are_those_of_the_ranks(letter: str) -> None:
    for kind in RUN:
        sample = samples_by_kind()[kind][0]
        if kind.split(".")[1][0] != letter or sample.rule is None:
            continue
        program = program_of(sample)
        for factor, dim, mesh in splits(sample.rule):
            if mesh.shape == (3,):
                check(program, factor, dim, mesh)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUN)
def test_the_seconds_of_every_split_of_an_op_are_those_of_the_ranks(kind: str) -> None:
    for sample in samples_by_kind()[kind]:
        if sample.rule is not None:
            program = program_of(sample)
            for factor, dim, mesh in splits(sample.rule):
                check(program, factor, dim, mesh)
