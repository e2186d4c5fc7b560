"""Search: plans equal the serial program, whatever the mesh, and come with a bound."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count

import pytest

from autopar.annotate import ChunkPin, apply_mesh, parse_mesh
from autopar.base.errors import InvalidInputError
from autopar.completion import Complete
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.space import Space
from autopar.completion.propagate.bodies import calls_on
from autopar.completion.search.fastest import Search
from autopar.completion.search.found import Found
from autopar.completion.search.network.candidates import CandidateTable
from autopar.completion.search.watch import Watch
from autopar.cost import Cluster
from autopar.cost.evaluation import evaluate
from autopar.cost.memory.timeline import memory_timeline
from autopar.ir.dims import SubDim, dim_axes
from autopar.ir.layout import Layout, Origin
from autopar.pipeline import Compiled, CompileOptions, compile_program
from autopar.planning.mesh_shape import fastest_shape
from tests.completion.networks import Network, mlp
from tests.completion.search.enumerated import drawn, graph_of, least_seconds, random_network
from tests.completion.test_training import language
from tests.judges.captured import check


def searched(graph: Graph) -> Found:
    return Search(graph, Watch()).best_at()


@pytest.mark.parametrize("mesh", ["a=3", "a=2,b=2"])
def test_a_searched_step_is_that_of_one_device(mesh: str) -> None:
    captured = language("adamw")
    # With slow devices and fast links everything is split, each in the way that suits it.
    base = Cluster.load("cpu")
    links = tuple(
        replace(link, alpha_seconds=1e-12, beta_seconds_per_byte=1e-12) for link in base.links
    )
    slow = replace(base, flops_per_second=(("f32", 1e6),), launch_seconds=0.0, links=links)
    done = compile_program(captured.program, CompileOptions(parse_mesh(mesh), slow, "auto"))
    split = [op for op in done.serial.main.ops if op.dist is not None and op.dist.factors]
    assert len(split) > len(done.serial.main.ops) / 2
    check(captured, done, 1e-5)
    (entry,) = [entry for entry in done.report if entry.category == "search"]
    assert "slower than the fastest" in entry.detail or "no plan is faster" in entry.detail


def check_best(seed: int) -> None:
    """Checks that search finds the best plan of a random program."""
    graph = drawn(seed)
    found = searched(graph)
    best = least_seconds(graph)
    assert found.seconds == pytest.approx(best, rel=1e-9)
    assert found.bound_seconds <= best * (1 + 1e-6)


LONE_SUMS = (222, 328, 428, 503, 612, 769)
"""Programs whose best plan avoids a sum that would travel alone."""


@pytest.mark.parametrize("seed", [*range(30), *LONE_SUMS])
def test_no_plan_is_faster(seed: int) -> None:
    check_best(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(10))
def test_no_plan_is_faster_of_many_programs(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        check_best(seed)


def check_finer(seed: int, coarse: str, fine: str) -> None:
    """Checks that a mesh with more axes isn't slower, where all links are alike."""
    base = Cluster.load("h100")
    cluster = replace(base, links=(replace(base.links[-1], size=256),))
    net = random_network(random.Random(seed))
    one, other = (searched(graph_of(net, parse_mesh(mesh), cluster)) for mesh in (coarse, fine))
    assert other.seconds <= one.seconds * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_more_axes_are_not_slower(seed: int) -> None:
    check_finer(seed, "4x4", "2x2x2x2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coarse", "fine"), [("4x4", "2x2x2x2"), ("16x16", "4x4x4x4"), ("8x8", "2x2x2x2x2x2")]
)
def test_more_axes_are_not_slower_for_many_programs(coarse: str, fine: str) -> None:
    for seed in range(30):
        check_finer(seed, coarse, fine)


def test_memory_is_part_of_the_plan() -> None:
    captured = language("adamw")
    mesh, cluster = parse_mesh("a=2"), Cluster.load("cpu")

    def done(
        strategy: str, memory: int | None = None, chunks: tuple[ChunkPin, ...] | None = None
    ) -> Compiled:
        options = CompileOptions(mesh, cluster, strategy, memory_bytes=memory, chunks=chunks)
        return compile_program(captured.program, options)

    def figures(of: Compiled) -> tuple[int, float]:
        seconds = evaluate(of.partitioned, cluster).serialized_seconds
        return memory_timeline(of.partitioned).peak_bytes, seconds

    peak, seconds = figures(done("auto"))
    limit = peak * 9 // 10
    within = done("auto", limit)
    less, slower = figures(within)
    assert less <= limit
    assert slower >= seconds
    check(captured, within, 1e-5)
    with pytest.raises(InvalidInputError, match="raise the limit"):
        done("auto", 1000, chunks=())


def layers(pin: str = "", batch: int = 4096) -> Graph:
    """Returns the graph of six products on four processes, one weight pinned by its columns."""
    net = Network()
    x = net.input("x", batch, 512)
    for number in range(6):
        x = net.relu(net.mm(x, net.weight(f"w{number}", 512, 512), f"y{number}"))
    mesh = parse_mesh("tp=4")
    if pin:
        columns = Layout.from_dims_mapping(mesh, (512, 512), (-1, "tp"))
        net.values[pin] = replace(net.values[pin], dist=columns, origin=Origin("annotated"))
    space = Space(mesh, Cluster.load("h100"))
    return Graph(space, calls_on(space), net.ops, net.values, [x])


def test_a_pin_of_one_layer_stays_there() -> None:
    free, pinned = searched(layers()).solution, searched(layers("w2")).solution
    shown = [
        (a.dist.factors, b.dist.factors)
        for node, a, b in zip(free.graph.nodes, free.choices, pinned.choices, strict=True)
        if node.op.results[0] in ("y0", "y5")
    ]
    assert all(before == after != () for before, after in shown)
    graph = pinned.graph
    assert pinned.forms[graph.position["w2"]] is graph.pins[graph.position["w2"]]


@pytest.mark.parametrize("batch", [3, 5, 4097])
def test_sizes_need_not_divide(batch: int) -> None:
    graph = layers(batch=batch)
    rows = [
        choice
        for choice in CandidateTable(graph).candidates_of(graph.nodes[0]).choices
        if "m" in dict(choice.dist.factors)
    ]
    assert rows
    parts = [dict(choice.dist.factors)["m"] for choice in rows]
    assert all(dim_axes(dim) == ("tp",) for dim in parts)


def test_axes_split_a_batch_within_rows_together_though_none_divides_it() -> None:
    net = Network()
    rows = net.view(net.input("x", 16, 7, 32), 112, 32)
    y = net.view(net.mm(rows, net.weight("w", 32, 32), "y"), 16, 7, 32)
    mesh = parse_mesh("a=3,b=2")
    space = Space(mesh, Cluster.load("h100"))
    graph = Graph(space, calls_on(space), net.ops, net.values, [y])
    (product,) = (node for node in graph.nodes if node.op.kind == "aten.mm.default")
    ways = CandidateTable(graph).candidates_of(product).choices
    data = (SubDim(16, ("a", "b")), SubDim(7))
    assert (("m", data),) in [way.dist.factors for way in ways]


def test_a_batch_that_does_not_divide_is_split() -> None:
    found = searched(layers(batch=4097))
    assert all(choice.splits.items for choice in found.solution.choices)


def test_a_limit_of_time_gives_the_best_plan_so_far() -> None:
    graph = layers()
    hurried, best = Search(graph, Watch(0.0)).best_at(), searched(graph)
    assert hurried.bound_seconds <= best.seconds <= hurried.seconds


@pytest.mark.parametrize("limit", [0, 1, 3, 10, 13])
def test_data_parallel_plans_are_tried_whatever_the_limit(limit: int) -> None:
    program = apply_mesh(mlp(batch=1024), parse_mesh("a=2,b=2"))
    told: list[str] = []
    watch = Watch(limit, lambda progress: told.append(progress.doing), count().__next__)
    found = Complete(Cluster.load("h100"), "auto", watch=watch).plan(program)
    assert sum(text.startswith("preset ") for text in told) >= 2
    assert found.forecast is not None
    assert found.forecast.notes[-1] == f"stopped at the limit of {limit} s"
    for strategy in ("data:a,data:b", "replicate:a,replicate:b"):
        preset = Complete(Cluster.load("h100"), strategy).plan(program)
        assert found.seconds <= preset.seconds * (1 + 1e-9)


def test_a_plan_is_said_to_be_a_preset_only_if_all_values_lie_alike() -> None:
    program = apply_mesh(mlp(batch=1 << 20), parse_mesh("a=2"))
    found = Complete(Cluster.load("h100"), "auto").plan(program)
    preset = Complete(Cluster.load("h100"), "data:a").plan(program)
    inputs = [each.program.main.values["x"].dist for each in (found, preset)]
    assert inputs[0] != inputs[1]
    assert found.forecast is not None
    assert found.forecast.remark().detail.endswith("; preset data:a takes as long")


def test_the_shape_of_a_mesh_is_searched() -> None:
    program = language("sgd").program
    shapes = fastest_shape(program, 4, Cluster.load("h100")).shapes
    assert sorted(shape.mesh.shape for shape in shapes) == [(2, 2), (4,)]
    assert [shape.seconds for shape in shapes] == sorted(shape.seconds for shape in shapes)
