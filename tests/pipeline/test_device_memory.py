"""What devices, or this machine, can't hold is refused or told before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.base.errors import InvalidInputError
from autopar.frontend.onnx import import_onnx
from autopar.ir.text import parse_program
from autopar.pipeline import Compiled, CompileOptions, compile_program, device_memory
from autopar.pipeline.device_memory import check_machine_memory
from tests.cli.command import autopar, compiled, refusal
from tests.frontend.onnx.graphs import FLOAT, graph, model, node, save


def relu_of(folder: Path, size: int, mesh: str = "2", shard: str = "x=[-1]") -> Compiled:
    proto = model(graph([node("Relu", "x", "y", name="act")], {"x": (FLOAT, [size])}, ["y"]))
    options = CompileOptions.from_text(mesh=mesh, strategy="none", shards=[shard])
    return compile_program(import_onnx(save(folder, proto)).program, options)


def memory_of(found: Compiled) -> list[str]:
    return [entry.detail for entry in found.report if entry.category == "memory"]


def test_a_tensor_larger_than_a_host(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as error:
        relu_of(tmp_path, 10**12)
    assert "at model.onnx" in str(error.value)
    assert "has shape [1000000000000] on a rank" in str(error.value)
    assert "takes 4000000000000 bytes (3.6 TiB)" in str(error.value)
    assert "a host of cluster cpu has 238.4 GiB" in str(error.value)


def test_it_may_be_split(tmp_path: Path) -> None:
    (detail,) = memory_of(relu_of(tmp_path, 10**12, "65", "x=[0]"))
    assert detail.startswith("a rank holds up to 114.6 GiB, one CPU core has 3.7 GiB; limit it")


def test_what_fits_is_not_told(tmp_path: Path) -> None:
    assert memory_of(relu_of(tmp_path, 10**8)) == []
    assert len(memory_of(relu_of(tmp_path, 10**9))) == 1


def test_this_machine(tmp_path: Path) -> None:
    program = relu_of(tmp_path, 1000).deployment.programs[0]
    check_machine_memory(program, 8000)
    with pytest.raises(InvalidInputError, match=r"has 7\.8 KiB of memory, and a rank takes 7\.8"):
        check_machine_memory(program, 7999)


def test_what_ranks_pass_may_differ(tmp_path: Path) -> None:
    """As the sizes of uneven blocks, of which the first rank's are looked at."""
    program = parse_program(
        """
        program executable
        input %x: f32[4]
        %y: f32[5 - tp * 2, 4] = aten.repeat.default(self=%x, repeats=[5 - tp * 2, 1])
        return %x
        """
    )
    with pytest.raises(InvalidInputError, match=r": y, the result of aten.repeat.*shape \[5, 4\]"):
        check_machine_memory(program, 32)


@pytest.mark.parametrize("words", [["run", "--random-inputs", "0"], ["verify"]])
def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    build = compiled(tmp_path)
    monkeypatch.setattr(device_memory, "machine_bytes", lambda: 1 << 10)
    command, *rest = words
    virtual = ["--virtual"] if command == "run" else []
    text = refusal(autopar(command, build, *rest, *virtual), 1)
    assert text.startswith("this machine has 1.0 KiB of memory, and a rank takes")
