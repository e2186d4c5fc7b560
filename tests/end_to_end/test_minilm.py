"""MiniLM on 2x4: the layout that the default strategy finds, and real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar import pipeline
from autopar.cost.summary import summarize_rank
from autopar.ir.program import Program
from autopar.ir.serde import program_from_bytes, program_to_bytes
from autopar.ir.text import parse_program, print_program
from autopar.runtime import api
from autopar.runtime.verification.verification import FREE_TOLERANCE, compare_outputs
from tests.judges.model_matrix import LoadedModel, compile_case, load, mesh_of

pytestmark = pytest.mark.models

LAYERS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imported")


@pytest.fixture(scope="module")
def minilm(folder: Path) -> LoadedModel:
    return load("minilm", folder)


def test_presets_are_megatrons_layout(minilm: LoadedModel) -> None:
    compiled = compile_case(minilm, mesh_of((2, 4)), "data:0,tensor:1")
    collectives = summarize_rank(compiled.partitioned, {"d0": 0, "d1": 0}).collectives
    assert [(each.kind, each.group) for each in collectives] == [("all_reduce", "d1")]
    assert collectives[0].count <= 2 * LAYERS


def test_every_rank_holds_a_quarter_of_the_matmul_weights(minilm: LoadedModel) -> None:
    compiled = compile_case(minilm, mesh_of((2, 4)), "data:0,tensor:1")
    main = compiled.serial.main
    weights = {
        name
        for op in main.ops
        if op.kind == "aten.mm.default"
        for name in op.operands
        if main.values[name].role == "parameter"
    }
    ports = [port for port in compiled.partitioned.signature.inputs if port.name in weights]
    assert len(ports) == 6 * LAYERS
    for port in ports:
        held, whole = 1, 1
        for dim in port.box:
            for sub in dim:
                assert isinstance(sub.length, int)
                held, whole = held * sub.length, whole * sub.size
        assert held <= 0.3 * whole


@pytest.mark.parametrize("strategy", ["auto", "data:0,tensor:1", "fsdp"])
def test_programs_of_all_levels_round_trip(minilm: LoadedModel, strategy: str) -> None:
    seen: list[Program] = []
    options = pipeline.CompileOptions.from_text(mesh="3x2", strategy=strategy)
    pipeline.compile_program(
        minilm.imported.program, options, lambda name, program: seen.append(program)
    )
    assert {program.level for program in seen} == {"serial", "partitioned", "executable"}
    for program in seen:
        assert program_from_bytes(program_to_bytes(program)) == program
        assert parse_program(print_program(program)) == program


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("minilm", "1x2"),
        ("ocr_cls", "2x2"),
        pytest.param("minilm", "2x2", marks=pytest.mark.slow),
        pytest.param("minilm", "2x4", marks=pytest.mark.slow),
        pytest.param("ocr_cls", "2", marks=pytest.mark.slow),
        pytest.param("ocr_cls", "2x4", marks=pytest.mark.slow),
    ],
)
def test_real_processes_equal_onnx_runtime(
    name: str, mesh: str, folder: Path, tmp_path: Path
) -> None:
    model = load(name, folder)
    options = pipeline.CompileOptions.from_text(mesh=mesh)
    compiled = pipeline.compile_program(model.imported.program, options)
    pipeline.write(compiled, model.imported.weights, tmp_path / "build")
    found = api.run(tmp_path / "build", model.inputs, backend="gloo")
    differences = compare_outputs(found, model.expected, FREE_TOLERANCE)
    assert [str(each) for each in differences.values() if not each.ok] == []
