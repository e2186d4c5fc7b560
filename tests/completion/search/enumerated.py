"""Small random programs, and their best plan by trying all there are."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from autopar.annotate import parse_mesh
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.price import Price
from autopar.completion.problem.space import Form, Space
from autopar.completion.propagate.bodies import calls_on
from autopar.completion.search.network.candidates import CandidateTable
from autopar.cost import Cluster
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from tests.completion.networks import Network

CLUSTERS = ("cpu", "h100", "torus", "a100", "mi300x")
MESHES = ("4", "3", "8", "2x2", "4x2")
SIZES = (3, 8, 512, 1000, 4096)
MOST_PLANS = 3000


def drawn(seed: int) -> Graph:
    """Returns the graph of a program with few enough plans to try them all."""
    chance = random.Random(seed)
    while True:
        mesh = parse_mesh(chance.choice(MESHES))
        graph = graph_of(random_network(chance), mesh, Cluster.load(chance.choice(CLUSTERS)))
        if 1 < _plans(graph) <= MOST_PLANS:
            return graph


def random_network(chance: random.Random) -> Network:
    """Returns a few ops on matrices."""
    net = Network()
    rows, columns = chance.choice(SIZES), chance.choice(SIZES)
    known = [net.input("x", rows, columns)]
    for number in range(chance.randint(2, 5)):
        x = chance.choice(known)
        same = [y for y in known if net.shape(y) == net.shape(x)]
        kind = chance.choice(("mm", "relu", "add", "mul", "softmax"))
        if kind == "mm":
            y = net.mm(x, net.weight(f"w{number}", net.shape(x)[1], chance.choice(SIZES)))
        elif kind == "relu":
            y = net.relu(x)
        elif kind == "softmax":
            y = net.unary("_softmax.default", x, dim=-1, half_to_float=False)
        else:
            y = net.binary(f"{kind}.Tensor", x, chance.choice(same))
        known.append(y)
    return net


def random_program(chance: random.Random) -> Program:
    """Returns a small program whose results are those that nothing reads."""
    net = random_network(chance)
    return net.program(*_unread(net))


def _unread(net: Network) -> list[str]:
    read = {name for op in net.ops for name in op.operands}
    return [name for op in net.ops for name in op.results if name not in read]


def graph_of(net: Network, mesh: ProcessMesh, cluster: Cluster) -> Graph:
    """Returns the graph of a network's program."""
    space = Space(mesh, cluster)
    return Graph(space, calls_on(space), net.ops, net.values, _unread(net))


def _plans(graph: Graph) -> int:
    table, count = CandidateTable(graph), 1
    for node in graph.nodes:
        count *= len(table.candidates_of(node).choices)
    return count


def least_seconds(graph: Graph) -> float:
    """Returns the seconds of the best plan."""
    table, price = CandidateTable(graph), Price(graph)
    ways = [table.candidates_of(node).choices for node in graph.nodes]
    return min(_seconds(graph, price, choices) for choices in product(*ways))


def _seconds(graph: Graph, price: Price, choices: Sequence[Choice]) -> float:
    """Returns the seconds of a plan, with inputs stored as is best and sums joined."""
    forms = [
        min(_stored(graph, choices, value), key=partial(price.value, choices, value))
        for value in range(len(graph.values))
    ]
    return price.total(choices, forms)


def _stored(graph: Graph, choices: Sequence[Choice], value: int) -> Iterator[Form]:
    """Yields the forms in which a value may be stored."""
    complete = graph.space.complete
    producer = graph.producer[value]
    if producer is None:
        yield graph.replicated(value)
        for node, at in graph.uses[value]:
            yield complete(choices[node.index].consumed[at])
        return
    made = choices[producer[0].index].produced[producer[1]]
    yield complete(made) if value in graph.outputs else made
