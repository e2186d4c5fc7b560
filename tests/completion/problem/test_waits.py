"""What parts of an op wait for is never more than its body takes."""

from __future__ import annotations

import pytest

from autopar.annotate import parse_mesh
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.space import Space
from autopar.completion.problem.waits import must_wait
from autopar.completion.propagate.bodies import calls_on
from autopar.completion.search.network.candidates import CandidateTable
from autopar.cost import Cluster
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from tests.completion.networks import encoder
from tests.completion.test_training import language

ROUNDING = 1e-9
ATTENTION = """
program "attention" serial
size $n = 0..512 planned 24

func main {
  input %q: f32[8, 6, $n, 16]
  input %k: f32[8, 6, $n, 16]
  input %v: f32[8, 6, $n, 16]
  %y: f32[8, 6, $n, 16] = aten.scaled_dot_product_attention.default(query=%q, key=%k, value=%v)
  %s: f32[8, 6, $n, 16] = aten._softmax.default(self=%y, dim=-1, half_to_float=false)
  %m: f32[8, 6, $n, 1] = aten.mean.dim(self=%s, dim=[-1], keepdim=true)
  return %s, %m
}
"""
PROGRAMS = {
    "encoder": lambda: encoder(1, batch=6, length=10, size=48, heads=3),
    "step": lambda: language("adamw").program,
    "open": lambda: parse_program(ATTENTION),
}


def graph_of(program: Program, mesh: str, cluster: str) -> Graph:
    space, main = Space(parse_mesh(mesh), Cluster.load(cluster)), program.main
    return Graph(space, calls_on(space), main.ops, main.values, main.outputs, main.aliases)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("cluster", ["cpu", "h100"])
@pytest.mark.parametrize("mesh", ["3", "2x2", "8x5", "64x64"])
def test_no_body_takes_less(program: str, mesh: str, cluster: str) -> None:
    if mesh == "64x64" and cluster == "h100":
        cluster = "h100x512"
    graph = graph_of(PROGRAMS[program](), mesh, cluster)
    table, waits = CandidateTable(graph), 0
    for each in dict.fromkeys(map(table.candidates_of, graph.nodes)):
        call = next(node.call for node in graph.nodes if table.candidates_of(node) is each)
        for choice in each.choices:
            if choice.dist.body:
                assert call.least_seconds(choice) <= choice.seconds * (1 + ROUNDING)
                waits += any(must_wait(call, choice.dist.body, f) for f, _ in choice.dist.factors)
    assert waits
