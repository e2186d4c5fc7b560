"""What users say of what waits in the host's memory, and what reports say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.ir.memory.transfers import DEVICE, HOST, hosted
from autopar.ir.serde import program_from_bytes, program_to_bytes
from autopar.ir.text import parse_program, print_program
from autopar.ir.verify import verify_structure
from tests.partition.offload.models import ALL, LAYERS, assert_trains_alike, compiled, stack


class Marked(nn.Module):
    """A stack, of which the first layer's weight is marked."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = stack()

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.stack
        x = nn.functional.linear(x, annotate.offload(first.weight, "cpu"), first.bias)
        for layer in rest:
            x = layer(x)
        return x


def there(found: Any) -> set[str]:
    return set(hosted(found.partitioned))


def test_patterns_say_what_waits() -> None:
    assert there(compiled("optimizer")) == {
        f"{kind}/{at}.{part}"
        for kind in ("exp_avg", "exp_avg_sq")
        for at in range(0, 2 * LAYERS, 2)
        for part in ("weight", "bias")
    }
    assert there(compiled("*.bias")) == {f"{at}.bias" for at in range(0, 2 * LAYERS, 2)}
    assert there(compiled("*/4.weight")) == {"exp_avg/4.weight", "exp_avg_sq/4.weight"}
    assert there(compiled(None)) == there(compiled([])) == set()


def test_a_marked_parameter_waits() -> None:
    found = compiled(None, "adam", Marked())
    assert there(found) == {"stack.0.weight"}
    found = compiled("exp_avg/*", "adam", Marked())
    assert "stack.0.weight" in there(found)
    assert len(there(found)) == 1 + 2 * LAYERS


def test_programs_with_transfers_are_stored_and_shown() -> None:
    program = compiled(ALL).partitioned
    verify_structure(program)
    assert program_from_bytes(program_to_bytes(program)) == program
    assert parse_program(print_program(program)) == program


def test_nothing_but_transfers_reads_the_host_s_memory() -> None:
    text = print_program(compiled("0.weight").partitioned)
    wrong = parse_program(text.replace("(self=%0.weight.back)", "(self=%0.weight)", 1))
    with pytest.raises(Exception, match=r"expected %0\.weight brought to the device"):
        verify_structure(wrong)


def test_reports_and_summaries_say_it() -> None:
    found = compiled(ALL)
    (entry,) = (each for each in found.report if each.category == "offload")
    assert entry.subject == "24 stored tensors"
    assert "49.5 KiB in the host's memory between uses" in entry.detail
    assert "offload" in found.summary()
    assert "host's memory" in str(autopar.diff(found, compiled([])))


def test_a_build_remembers_what_waits(tmp_path: Path) -> None:
    found = compiled(ALL)
    found.save(tmp_path / "build")
    profile = autopar.profile(tmp_path / "build")
    assert profile.timeline.host_bytes == autopar.profile(found).timeline.host_bytes > 0


def test_files_and_plans_say_what_waits(tmp_path: Path) -> None:
    file = tmp_path / "pins.yaml"
    file.write_text("offload: [optimizer, 0.weight]\n")
    first = compiled(None, plan=file)
    assert there(first) == there(compiled(["optimizer", "0.weight"]))
    assert there(compiled([], plan=file)) == set()
    autopar.save_plan(first, tmp_path / "plan.yaml")
    again = compiled(None, plan=tmp_path / "plan.yaml", strategy="")
    assert there(again) == there(first)


@pytest.mark.parametrize(
    ("offload", "error", "message"),
    [
        ("exp_av/*", AnnotationError, r"offload='exp_av/\*': pattern .* matches no parameter"),
        ("0.weigth", AnnotationError, r"did you mean 0\.weight"),
        ("step/0.weight", AnnotationError, r"matches step/0\.weight, which is a number"),
        ("input", AnnotationError, r"matches input, which is of the role input"),
        (3, InvalidInputError, r"offload=3: give a pattern of names, or a list of them"),
    ],
)
def test_what_can_t_be_meant_is_refused(offload: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compiled(offload)


def test_other_memories_are_refused_by_line() -> None:
    class Elsewhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, annotate.offload(self.inner.weight, "disk"))

    with pytest.raises(AnnotationError, match=r"test_pins\.py:\d+: offload of .* to disk"):
        compiled(None, "momentum", Elsewhere())


def test_parameters_wait_where_nothing_is_trained(tmp_path: Path) -> None:
    model, x = stack().eval(), torch.randn(8, 32)
    found = autopar.compile(model, x, mesh="2", strategy="tensor", offload="parameters")
    assert len(there(found)) == 2 * LAYERS
    found.save(tmp_path / "build")
    plain = autopar.compile(model, x, mesh="2", strategy="tensor")
    plain.save(tmp_path / "plain")
    results = []
    for name in ("build", "plain"):
        results.append(autopar.runtime.run(tmp_path / name, {"input": x}, virtual=True))
    assert all(torch.equal(results[0][name], tensor) for name, tensor in results[1].items())
    with pytest.raises(AnnotationError, match="has no optimizer state"):
        autopar.compile(model, x, mesh="2", offload="optimizer")


@pytest.mark.parametrize("update", [DEVICE, HOST])
def test_batches_of_other_shapes_share_what_waits(tmp_path: Path, update: str) -> None:
    x = torch.randn(5, 32)
    found = compiled(ALL, mesh="2", more_batches=[(x, x)], update=update)
    found.save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        assert trainer.step((x, x)).isfinite()
    assert_trains_alike(found, "adam", mesh="2")
