"""No plan takes less than the bound of a search, whoever made it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autopar.annotate import Pin, apply_mesh, apply_pins, parse_mesh
from autopar.base.errors import AnnotationError
from autopar.completion import Complete, Legalize
from autopar.completion.prepare.common_subexpressions import share_moves
from autopar.completion.prepare.renew_views import renew_views
from autopar.completion.problem.buckets import DeferredSums
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.price import Price
from autopar.completion.problem.space import Form, Space
from autopar.completion.propagate.bodies import calls_on
from autopar.completion.propagate.solve import Solution
from autopar.completion.search.fastest import Search
from autopar.completion.search.network.candidates import CandidateTable
from autopar.completion.search.watch import Watch
from autopar.completion.write import write_solution
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.cost.evaluation import evaluate
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.partition import Coalesce, Partition, Prefetch
from tests.completion.search.enumerated import CLUSTERS, random_program
from tests.completion.test_training import language
from tests.given.random_pins import random_pins

MESHES = ("4", "3", "8", "2x2", "4x2", "2x2x2")
OPEN = """
program "open" serial
size $n = 0..512 planned 32

func main {
  input %x: f32[$n, 64]
  parameter %u: f32[64, 64]
  parameter %v: f32[64, 64]
  %p: f32[$n, 64] = aten.mm.default(self=%x, mat2=%u)
  %q: f32[$n, 64] = aten.mm.default(self=%x, mat2=%v)
  %r: f32[$n, 64] = aten.relu.default(self=%p)
  %s: f32[$n, 64] = aten.gelu.default(self=%q, approximate="none")
  %y: f32[$n, 64] = aten.mul.Tensor(self=%r, other=%s)
  return %y
}
"""
ASSIGNMENTS, LOWERED, OPENED = 30, 4, 8
PHASES = ("forward", "backward", "update")
ROUNDING = 1e-9


def searched(graph: Graph) -> tuple[Solution, float]:
    """Returns the plan of a search, and its bound."""
    found = Search(graph, Watch()).best_at()
    assert found.bound_seconds <= found.seconds * (1 + ROUNDING)
    return found.solution, found.bound_seconds * (1 - ROUNDING)


def free(program: Program, cluster: Cluster) -> Graph:
    """Returns the graph of a program without pins."""
    assert program.mesh is not None
    space, main = Space(program.mesh, cluster), share_moves(renew_views(program.main))
    return Graph(space, calls_on(space), main.ops, main.values, main.outputs, main.aliases)


def seconds_as_run(completed: Program, cluster: Cluster) -> float:
    """Returns the seconds of the ranks' program with its sums joined, by the evaluator."""
    assert completed.mesh is not None
    planner = ReshardPlanner(CommunicationModel(cluster, completed.mesh))
    ranks = Partition(cluster, planner)(Legalize(cluster, planner)(completed))
    return evaluate(Prefetch()(Coalesce(cluster)(ranks)), cluster).serialized_seconds


def completed_seconds(program: Program, cluster: Cluster, strategy: str | None) -> float:
    return seconds_as_run(Complete(cluster, strategy)(program), cluster)


def assigned(graph: Graph, chance: random.Random) -> Solution:
    """Returns a plan in which every choice and every input's form is drawn."""
    table = CandidateTable(graph)
    choices = [chance.choice(table.candidates_of(node).choices) for node in graph.nodes]
    forms = [_form(graph, choices, value, chance) for value in range(len(graph.values))]
    return _solution(graph, choices, forms)


def _solution(graph: Graph, choices: list[Choice], forms: list[Form]) -> Solution:
    sources: list[dict[str, int]] = [{} for _ in choices]
    origins: list[dict[str, int]] = [{} for _ in forms]
    return Solution(graph, choices, forms, sources, origins, frozenset())


def _form(graph: Graph, choices: list[Choice], value: int, chance: random.Random) -> Form:
    complete, producer = graph.space.complete, graph.producer[value]
    if producer is None:
        read = [complete(choices[node.index].consumed[at]) for node, at in graph.uses[value]]
        return chance.choice([graph.replicated(value), *read])
    made = choices[producer[0].index].produced[producer[1]]
    return complete(made) if value in graph.outputs else made


def summed(graph: Graph, chance: random.Random) -> Solution:
    """Returns a plan in which what can leave a sum does, more often than not."""
    table = CandidateTable(graph)
    choices = []
    for node in graph.nodes:
        ways = table.candidates_of(node).choices
        sums = [way for way in ways if any(form.layout.partial for form in way.produced)]
        choices.append(chance.choice(sums if sums and chance.random() < 0.8 else ways))
    forms = [_form(graph, choices, value, chance) for value in range(len(graph.values))]
    return _solution(graph, choices, forms)


def drawn(seed: int) -> tuple[Program, ProcessMesh, Cluster, random.Random]:
    chance = random.Random(seed)
    program, mesh = random_program(chance), parse_mesh(chance.choice(MESHES))
    return program, mesh, Cluster.load(chance.choice(CLUSTERS)), chance


def in_phases(program: Program, chance: random.Random) -> Program:
    """Returns a program whose last ops belong to other phases than the first."""
    main = program.main
    first, second = sorted(chance.choices(range(len(main.ops) + 1), k=2))
    phases = [PHASES[(at >= first) + (at >= second)] for at in range(len(main.ops))]
    ops = tuple(replace(op, phase=phase) for op, phase in zip(main.ops, phases, strict=True))
    return program.with_main(replace(main, ops=ops))


def check(seed: int) -> None:
    program, mesh, cluster, chance = drawn(seed)
    if chance.random() < 0.5:
        program = in_phases(program, chance)
    with_mesh = apply_mesh(program, mesh)
    graph = free(with_mesh, cluster)
    found, bound = searched(graph)
    price = Price(graph)
    plans = [draw(graph, chance) for draw in (assigned, summed) for _ in range(ASSIGNMENTS)]
    plans.sort(key=lambda plan: price.total(plan.choices, plan.forms))
    assert price.total(plans[0].choices, plans[0].forms) >= bound
    for plan in (found, *plans[:LOWERED]):
        done = with_mesh.with_main(write_solution(with_mesh.main, plan))
        assert seconds_as_run(done, cluster) >= bound
    for number in range(2):
        pinned = apply_pins(program, mesh, random_pins(program, mesh, "bound", number))
        assert completed_seconds(apply_mesh(pinned, mesh), cluster, None) >= bound


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_takes_less_than_the_bound(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(1, 4))
def test_no_plan_of_many_programs_takes_less_than_the_bound(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        check(seed)


def test_no_preset_takes_less_than_the_bound_of_a_training_step() -> None:
    mesh, cluster = parse_mesh("a=2,b=2"), Cluster.load("h100")
    program = apply_mesh(language("adamw").program, mesh)
    _, bound = searched(free(program, cluster))
    for strategy in ("data:0", "fsdp:0", "data:0,tensor:1"):
        try:
            assert completed_seconds(program, cluster, strategy) >= bound
        except AnnotationError:
            continue  # it finds nothing to split


def opened(mesh: str) -> Program:
    """Returns a program whose batch is open, with two sums that a phase waits for."""
    pins = [Pin("x", (-1, 0), "test"), Pin("[uv]", (0, -1), "test")]
    return apply_mesh(apply_pins(parse_program(OPEN), parse_mesh(mesh), pins), parse_mesh(mesh))


@pytest.mark.parametrize("mesh", ["a=3", "a=2,b=3", "a=8,b=2", "a=64,b=8"])
def test_no_plan_of_open_sizes_takes_less_than_the_bound(mesh: str) -> None:
    program, cluster, chance = opened(mesh), Cluster.load("cpu"), random.Random(mesh)
    graph = free(program, cluster)
    found, bound = searched(graph)
    plans = [draw(graph, chance) for draw in (assigned, summed) for _ in range(OPENED)]
    for plan in (found, *plans):
        done = program.with_main(write_solution(program.main, plan))
        assert seconds_as_run(done, cluster) >= bound


def test_sums_of_open_sizes_travel_with_none() -> None:
    graph = free(opened("a=8"), Cluster.load("cpu"))
    sums = graph.shared(DeferredSums)
    assert "awaited" in sums.group.values()
    assert {sums.joined_with(value) for value in sums.group} == {None}
    fixed = OPEN.replace("size $n = 0..512 planned 32\n", "").replace("$n", "32")
    graph = free(apply_mesh(parse_program(fixed), parse_mesh("a=8")), Cluster.load("cpu"))
    sums = graph.shared(DeferredSums)
    assert {sums.joined_with(value) for value in sums.group} == {"awaited", ""}
