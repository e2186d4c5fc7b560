"""Programs of one op, compiled under random pins and run by all ranks of a virtual mesh.

The split, run, combine test proves the rules; this one, that completion, partition and the runtime
do with them what the rules say: bodies, lookups with an offset, local arguments, empty parts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from autopar.ir.program import Function, Port, Program, Signature
from autopar.pipeline import CompileOptions, compile_program
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.ops.sample import Sample, f, i, s
from tests.ops.samples import RUN, samples_by_kind
from tests.ops.split_run_combine import assert_equal, tolerance_of

MESHES = ("2", "3", "2x2", "2x3")
COMMON = """addmm.default cat.default convolution.default embedding.default expand.default
gather.default index_select.default linear.default _log_softmax.default mean.dim mm.default
native_batch_norm.default native_group_norm.default native_layer_norm.default scatter.src
slice.Tensor _softmax.default split_with_sizes.default var_mean.correction view.default"""


@pytest.fixture(scope="module")
def no_weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeightFile]:
    """Yields an empty file of weights: operands are inputs."""
    path: Path = tmp_path_factory.mktemp("weights") / "none.safetensors"
    write_weights(path, {})
    with WeightFile(path) as weights:
        yield weights


def program_of(sample: Sample) -> Program:
    """Returns the program whose inputs are the sample's operands."""
    inputs = tuple(f"x{at}" for at in range(len(sample.tensors)))
    values = {
        name: replace(value, role="input") if name in inputs else value
        for name, value in sample.values.items()
    }

    def port(name: str) -> Port:
        value = values[name]
        return Port(name, name, value.dtype, value.global_shape, value.role)

    results = sample.op.results
    main = Function("main", inputs, results, values, (sample.op,))
    signature = Signature(tuple(map(port, inputs)), tuple(map(port, results)))
    return Program({"main": main}, signature)


def random_options(sample: Sample, dice: random.Random) -> CompileOptions:
    """Returns a mesh, and splits of some operands and results."""
    mesh = dice.choice(MESHES)
    shards = []
    for name, value in sample.values.items():
        mapping = ["-1"] * len(value.shape)
        for axis in range(mesh.count("x") + 1):
            at = dice.randrange(len(mapping)) if mapping and dice.random() < 0.8 else None
            if at is not None and mapping[at] == "-1":
                mapping[at] = f"d{axis}"
        if dice.random() < 0.7:
            shards.append(f"{name}=[{','.join(mapping)}]")
    return CompileOptions.from_text(mesh=mesh, shards=shards)


def check_compiled(sample: Sample, options: CompileOptions, weights: WeightFile) -> None:
    """Checks that all ranks together compute what the op does."""
    compiled = compile_program(program_of(sample), options)
    inputs: dict[str, Tensor] = {f"x{at}": tensor for at, tensor in enumerate(sample.tensors)}
    found = VirtualMesh(compiled.deployment, weights).run(inputs)
    what = f"{sample}\n  {options.mesh} {options.pins}"
    for name, whole in zip(sample.op.results, sample.results, strict=True):
        assert_equal(found[name], whole, f"{what}: {name}", tolerance_of(sample.tensors))


@pytest.mark.parametrize("kind", [f"aten.{name}" for name in COMMON.split()])
def test_common_ops(kind: str, no_weights: WeightFile) -> None:
    dice = random.Random(kind)
    for sample in samples_by_kind()[kind][:4]:
        check_compiled(sample, random_options(sample, dice), no_weights)


def test_a_process_without_rows_adds_to_no_result(no_weights: WeightFile) -> None:
    """9 rows leave the last of 8 processes none; least and greatest have other identities."""
    options = CompileOptions.from_text(mesh="8", shards=["x0=[d0,-1]"])
    check_compiled(s("aminmax", f(9, 20000), dim=0), options, no_weights)


def test_split_writes_add_to_what_was_there_once(no_weights: WeightFile) -> None:
    """Messages along the edges of a graph, split, are added up at its nodes."""
    nodes, edges = f(5, 3), i(400, low=0, high=5)
    sample = s("index_add", nodes, 0, edges, f(400, 3))
    shards = ["x0=[-1,-1]", "x1=[d0]", "x2=[d0,-1]"]
    options = CompileOptions.from_text(mesh="3", strategy="none", shards=shards)
    check_compiled(sample, options, no_weights)
    deployment = compile_program(program_of(sample), options).deployment
    kinds = [op.kind for op in deployment.programs[0].functions["main"].ops]
    assert kinds == ["autopar.to_partial", "aten.index_add.default", "comm.all_reduce"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUN)
def test_all_ops(kind: str, no_weights: WeightFile) -> None:
    dice = random.Random(kind)
    for sample in samples_by_kind()[kind]:
        for _ in range(3):
            check_compiled(sample, random_options(sample, dice), no_weights)
