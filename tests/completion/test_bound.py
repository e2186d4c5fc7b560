"""No plan takes less than the bound of a search, whoever made it."""

from __future__ import annotations

import random

import pytest

from autopar.annotate import apply_mesh, apply_pins, parse_mesh
from autopar.completion import Complete, Legalize
from autopar.completion.call import CallTable, Choice
from autopar.completion.graph import Graph
from autopar.completion.lifetimes import renew_views
from autopar.completion.price import Price
from autopar.completion.search.candidates import CandidateTable
from autopar.completion.search.fastest import search
from autopar.completion.share import share_moves
from autopar.completion.space import Form, Space
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.cost.evaluation import evaluate
from autopar.ir.errors import AnnotationError
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.partition import Partition
from tests.completion.enumerated import CLUSTERS, random_program
from tests.completion.test_training import language
from tests.random_pins import random_pins

MESHES = ("4", "3", "8", "2x2", "4x2", "2x2x2")
ASSIGNMENTS = 30
ROUNDING = 1e-9


def bound_of(graph: Graph) -> float:
    found = search(graph)
    assert found.bound_seconds <= found.seconds * (1 + ROUNDING)
    return found.bound_seconds * (1 - ROUNDING)


def free(program: Program, cluster: Cluster) -> Graph:
    """Returns the graph of a program without pins."""
    assert program.mesh is not None
    space, main = Space(program.mesh, cluster), share_moves(renew_views(program.main))
    return Graph(space, CallTable(space), main.ops, main.values, main.outputs, main.aliases)


def ranks_seconds(program: Program, cluster: Cluster, strategy: str | None) -> float:
    """Returns the seconds of the ranks' program, by the evaluator."""
    assert program.mesh is not None
    planner = ReshardPlanner(CommunicationModel(cluster, program.mesh))
    done = Legalize(cluster, planner)(Complete(cluster, strategy, planner)(program))
    return evaluate(Partition(cluster, planner)(done), cluster).serialized_seconds


def assigned_seconds(graph: Graph, chance: random.Random) -> float:
    """Returns the seconds of a plan in which every choice and every input's form is drawn."""
    table = CandidateTable(graph)
    choices = [chance.choice(table.of(node).choices) for node in graph.nodes]
    forms = [_form(graph, choices, value, chance) for value in range(len(graph.values))]
    return Price(graph).total(choices, forms)


def _form(graph: Graph, choices: list[Choice], value: int, chance: random.Random) -> Form:
    complete, producer = graph.space.complete, graph.producer[value]
    if producer is None:
        read = [complete(choices[node.index].consumed[at]) for node, at in graph.uses[value]]
        return chance.choice([graph.replicated(value), *read])
    made = choices[producer[0].index].produced[producer[1]]
    return complete(made) if value in graph.outputs else made


def drawn(seed: int) -> tuple[Program, ProcessMesh, Cluster, random.Random]:
    chance = random.Random(seed)
    program, mesh = random_program(chance), parse_mesh(chance.choice(MESHES))
    return program, mesh, Cluster.load(chance.choice(CLUSTERS)), chance


def check(seed: int) -> None:
    program, mesh, cluster, chance = drawn(seed)
    graph = free(apply_mesh(program, mesh), cluster)
    bound = bound_of(graph)
    for _ in range(ASSIGNMENTS):
        assert assigned_seconds(graph, chance) >= bound
    for number in range(2):
        pinned = apply_pins(program, mesh, random_pins(program, mesh, "bound", number))
        assert ranks_seconds(apply_mesh(pinned, mesh), cluster, None) >= bound


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
    bound = bound_of(free(program, cluster))
    for strategy in ("data:0", "fsdp:0", "data:0,tensor:1"):
        try:
            assert ranks_seconds(program, cluster, strategy) >= bound
        except AnnotationError:
            continue  # it finds nothing to split
