"""What holds for every program and every set of pins."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.completion import Complete, Legalize
from autopar.completion.problem.space import Space
from autopar.completion.propagate.bodies import calls_on
from autopar.cost import Cluster
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Op, Program
from autopar.ir.rules.distribution import consumed, produced
from autopar.ir.verify import verify_distribution
from tests.completion.networks import Network, encoder

CLUSTERS = {name: Cluster.load(name) for name in ("cpu", "h100")}
MESHES = tuple(
    ProcessMesh.of_shape(shape, ["a", "b", "c"][: len(shape)])
    for shape in ((2,), (3,), (2, 4), (3, 2), (2, 2, 2))
)
SIZES = (1, 2, 3, 4, 6, 8, 12)


@st.composite
def networks(draw: st.DrawFn) -> Program:
    """Draws a program of matrices that are multiplied, added, viewed, normalized."""
    net = Network()
    values = [net.input("x", draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES)))]
    for number in range(draw(st.integers(1, 8))):
        x = draw(st.sampled_from(values))
        rows, columns = net.shape(x)
        step = draw(st.sampled_from(("mm", "addmm", "add", "mul", "relu", "view", "t", "norm")))
        if step in ("mm", "addmm"):
            size = draw(st.sampled_from(SIZES))
            w = net.weight(f"w{number}", columns, size)
            bias = net.weight(f"b{number}", size) if step == "addmm" else ""
            y = net.addmm(bias, x, w) if bias else net.mm(x, w)
        elif step in ("add", "mul"):
            fitting = [v for v in values if net.shape(v) == (rows, columns)]
            y = net.binary(f"{step}.Tensor", x, draw(st.sampled_from(fitting)))
        elif step == "view":
            count = rows * columns
            divisors = [d for d in range(1, count + 1) if count % d == 0]
            head = draw(st.sampled_from(divisors))
            y = net.view(x, head, count // head)
        elif step == "t":
            y = net.permute(x, 1, 0)
        elif step == "norm":
            y = net.softmax(net.layer_norm(x, f"n{number}"))
        else:
            y = net.relu(x)
        values.append(y)
    used = {name for op in net.ops for name in op.operands}
    return net.program(*(name for name in values if name not in used))


def pinned(program: Program, mesh: ProcessMesh, seed: int, count: int) -> Program:
    """Pins some values at random."""
    chance = random.Random(seed)
    values = dict(program.main.values)
    for name in chance.sample(sorted(values), min(count, len(values))):
        shape = values[name].global_shape
        entries: list[list[str]] = [[] for _ in shape]
        for axis in chance.sample(mesh.dim_names, chance.randint(0, mesh.ndim)):
            if shape:
                chance.choice(entries).append(axis)
        layout = Layout.from_dims_mapping(mesh, shape, [tuple(entry) for entry in entries])
        origin = Origin("annotated", f"pin of {name}")
        values[name] = replace(values[name], dist=layout, origin=origin)
    return replace(program.with_main(replace(program.main, values=values)), mesh=mesh)


PROGRAMS = st.builds(
    pinned, networks(), st.sampled_from(MESHES), st.integers(0, 2**16), st.integers(0, 4)
)
COMPLETE = st.builds(
    Complete,
    st.sampled_from(list(CLUSTERS.values())),
    st.sampled_from([None, "data", "fsdp", "tensor"]),
)


@settings(max_examples=150, deadline=None)
@given(PROGRAMS, COMPLETE)
def test_completed_programs_follow_their_rules_and_pins(
    program: Program, complete: Complete
) -> None:
    done = complete(program)
    verify_distribution(done, program)
    for name, value in program.main.values.items():
        if value.dist is not None and value.role != "parameter":
            assert done.main.values[name] == value
        elif value.dist is not None:
            found = done.main.values[name].dist
            assert found is not None
            assert found.dims_mapping == value.dist.dims_mapping
    legal = Legalize(complete.cluster)(done)
    verify_distribution(legal, program)
    assert not any(op.dist.body for op in legal.main.ops if op.dist)


def shuffled(program: Program, seed: int) -> Program:
    """Returns the program with its ops in another order that respects their dependences."""
    chance = random.Random(seed)
    known = set(program.main.inputs)
    waiting, ops = list(program.main.ops), list[Op]()
    while waiting:
        ready = [op for op in waiting if known.issuperset(op.operands)]
        op = chance.choice(ready)
        waiting.remove(op)
        ops.append(op)
        known.update(op.results)
    return program.with_main(replace(program.main, ops=tuple(ops)))


def by_result(program: Program) -> dict[tuple[str, ...], Op]:
    return {op.results: op for op in program.main.ops}


@settings(max_examples=50, deadline=None)
@given(PROGRAMS, COMPLETE, st.integers(0, 2**16))
def test_the_order_of_independent_ops_does_not_matter(
    program: Program, complete: Complete, seed: int
) -> None:
    one, other = complete(program), complete(shuffled(program, seed))
    assert one.main.values == other.main.values
    assert by_result(one) == by_result(other)


def test_the_order_of_ops_does_not_matter_in_an_encoder() -> None:
    mesh = ProcessMesh.of_shape((2, 4), ["dp", "tp"])
    for seed in range(5):
        program = pinned(encoder(1), mesh, seed, 12)
        complete = Complete(CLUSTERS["cpu"], "data:0,tensor:1")
        one, other = complete(program), complete(shuffled(program, seed))
        assert one.main.values == other.main.values
        assert by_result(one) == by_result(other)


@settings(max_examples=40, deadline=None)
@given(PROGRAMS, st.integers(0, 2**16))
def test_choices_are_what_the_rules_say(program: Program, seed: int) -> None:
    """Completion puts layouts together faster, but they are those of `ir.distribution`."""
    assert program.mesh is not None
    space = Space(program.mesh, CLUSTERS["cpu"])
    calls = calls_on(space)
    chance = random.Random(seed)
    for op in program.main.ops:
        call = calls.call_of(op, program.main.values)
        assert call.rule is not None
        splits = space.table.none
        for at, name in enumerate((*op.operands, *op.results)):
            form = space.form(random_layout(program, name, chance))
            suggested = call.suggest(at, form)
            for axis in suggested.places:
                if axis not in splits.places:
                    splits = space.table.merged(splits, axis, suggested) or splits
        choice = call.choice(splits)
        if choice is None:
            continue
        for at, form in enumerate(choice.consumed):
            assert form.layout == consumed(call.rule, choice.dist, at)
        for at, form in enumerate(choice.produced):
            assert form.layout == produced(call.rule, choice.dist, at)


def random_layout(program: Program, name: str, chance: random.Random) -> Layout:
    assert program.mesh is not None
    shape = program.main.values[name].global_shape
    entries: list[list[str]] = [[] for _ in shape]
    for axis in program.mesh.dim_names:
        if shape and chance.random() < 0.6:
            chance.choice(entries).append(axis)
    return Layout.from_dims_mapping(program.mesh, shape, [tuple(entry) for entry in entries])


SCRIPT = """
from hashlib import sha256
from autopar.ir.text import print_program
from tests.completion.test_laws import *
mesh = ProcessMesh.of_shape((2, 4), ["dp", "tp"])
for strategy in (None, "auto", "data:0,tensor:1", "fsdp:0,tensor:1"):
    program = pinned(encoder(1), mesh, 3, 12)
    done = Legalize(CLUSTERS["cpu"])(Complete(CLUSTERS["cpu"], strategy)(program))
    print(sha256(print_program(done).encode()).hexdigest())
"""


def test_the_result_does_not_depend_on_hash_seeds() -> None:
    outputs = set()
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 4


def test_work_does_not_grow_with_the_mesh() -> None:
    """The same layouts come up, whatever the sizes of the axes."""
    counts = []
    for shape in ((2, 4), (64, 64)):
        program = replace(encoder(2, batch=256, size=4096, heads=64), mesh=None)
        space = Space(ProcessMesh.of_shape(shape), CLUSTERS["h100"])
        done = Complete(CLUSTERS["h100"], "data:0,tensor:1")(replace(program, mesh=space.mesh))
        counts.append(len({value.dist.dims for value in done.main.values.values() if value.dist}))
        assert math.prod(shape) == space.mesh.size
    assert counts[0] == counts[1]
