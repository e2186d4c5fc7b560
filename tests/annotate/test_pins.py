"""Pins by name pattern, from options and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.annotate import Pin, ProcessMesh, apply_pins, load_annotations, parse_pin
from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.ir.text.layouts import dims_mapping_text
from tests.completion.networks import Network

MESH = ProcessMesh([[0, 1, 2, 3], [4, 5, 6, 7]], ["dp", "tp"])


def program() -> Program:
    net = Network()
    x = net.input("x", 8, 16)
    h = net.relu(net.mm(x, net.weight("encoder.0.weight", 16, 32), "hidden"), "active")
    return net.program(net.mm(h, net.weight("encoder.1.weight", 32, 16), "y"))


def pinned(*pins: str) -> dict[str, str]:
    done = apply_pins(program(), MESH, [parse_pin(text) for text in pins])
    return {name: str(value.dist) for name, value in done.main.values.items() if value.dist}


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("x=[dp,-1]", "[8@dp, 16]"),
        ("x=[0,1]", "[8@dp, 16@tp]"),
        ("x=[None,'tp']", "[8, 16@tp]"),
        ("x=[(dp,tp), -1]", "[8@(dp,tp), 16]"),
        ("x=[(tp,dp), ()]", "[8@(tp,dp), 16]"),
        ("x=[-1,-1]", "[8, 16]"),
    ],
)
def test_entries_are_axes_by_index_or_name(text: str, layout: str) -> None:
    assert pinned(text) == {"x": layout}


def test_patterns_match_inputs_parameters_and_activations() -> None:
    assert pinned("encoder.*.weight=[-1,tp]") == {
        "encoder.0.weight": "[16, 32@tp]",
        "encoder.1.weight": "[32, 16@tp]",
    }
    assert pinned("[ax]*=[dp,-1]") == {"x": "[8@dp, 16]", "active": "[8@dp, 32]"}


def test_pins_keep_their_place() -> None:
    done = apply_pins(program(), MESH, [parse_pin("x=[dp,-1]")])
    origin = done.main.values["x"].origin
    assert origin is not None
    assert (origin.kind, origin.detail) == ("annotated", "--shard 'x=[dp,-1]'")


def test_equal_pins_of_one_value_agree() -> None:
    assert pinned("x=[dp,-1]", "x=[0,None]") == {"x": "[8@dp, 16]"}


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (["encodr.*.weight=[-1,tp]"], r"matches no input.*did you mean .*encoder\.0\.weight"),
        (["x=[dp]"], r"--shard 'x=\[dp\]': %x of shape \[8, 16\]: .*one entry per dimension"),
        (["x=[dp,dp]"], r"%x of shape \[8, 16\]: .*uses mesh axis dp more than once"),
        (["x=[pd,-1]"], r"%x .*no axis 'pd'.*did you mean .*dp"),
        (["x=[2,-1]"], r"%x .*axis 2 is out of range"),
        (
            ["x=[dp,-1]", "*=[-1,tp]"],
            r"two pins disagree about %x: \[8@dp, 16\] by .*'x=.*, \[8, 16@tp\] by .*'\*=",
        ),
    ],
)
def test_a_pin_that_does_not_fit_is_an_error(pins: list[str], message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        pinned(*pins)


@pytest.mark.parametrize(
    "text", ["x", "=[dp]", "x=dp,-1", "x=[dp,-1", "x=[dp,,tp]", "x=[(dp]", "x=[dp tp]", "x=[d*]"]
)
def test_malformed_pins_show_the_option(text: str) -> None:
    with pytest.raises(AnnotationError) as error:
        parse_pin(text)
    assert text in str(error.value)


def test_a_file_holds_pins_and_a_mesh(tmp_path: Path) -> None:
    path = tmp_path / "pins.yaml"
    path.write_text(
        "mesh: dp=2,tp=4\nshard:\n"
        "  encoder.*: [-1, tp]\n"
        "  x: [[dp, tp], null]\n"
        "  y: [(dp,tp), None]\n"
        "  hidden: '[0, 1]'\n"
    )
    found = load_annotations(path)
    assert found.mesh is not None
    assert found.mesh.axis_sizes() == {"dp": 2, "tp": 4}
    assert found.pins == (
        Pin("encoder.*", (-1, "tp"), f"{path}:3"),
        Pin("x", (("dp", "tp"), None), f"{path}:4"),
        Pin("y", (("dp", "tp"), None), f"{path}:5"),
        Pin("hidden", (0, 1), f"{path}:6"),
    )


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("shard: [", InvalidInputError, "can't read the annotations"),
        ("shards: {}", AnnotationError, "unknown key 'shards'"),
        ("shard: 3", AnnotationError, "expected a mapping"),
        ("shard:\n  x: {a: 1}", AnnotationError, ":2: expected a list"),
        ("shard:\n  x: [a b]", AnnotationError, ":2: dims_mapping"),
        ("mesh: 2x", AnnotationError, "a size is missing"),
    ],
)
def test_a_bad_file_says_where(
    tmp_path: Path, content: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "pins.yaml"
    path.write_text(content)
    with pytest.raises(error, match=message):
        load_annotations(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file"):
        load_annotations(tmp_path / "none.yaml")


@pytest.mark.parametrize("axes", ["(dp,tp)", "[dp,tp]", "[ dp, tp ]"])
def test_several_axes_stand_in_either_bracket(axes: str) -> None:
    assert parse_pin(f"w=[-1, {axes}]").dims_mapping == (-1, ("dp", "tp"))


def test_axes_may_have_names_of_any_language() -> None:
    assert parse_pin("w=[größe, -1]").dims_mapping == ("größe", -1)


@pytest.mark.parametrize("text", ["[(dp,tp]]", "[[dp,tp)]", "[[dp,[tp]]]", "[[dp]"])
def test_brackets_must_match(text: str) -> None:
    with pytest.raises(AnnotationError, match=r"expected .*, got"):
        parse_pin(f"w={text}")


def test_sub_dimensions_have_open_sizes() -> None:
    text = """
    program "p" serial
    size $batch = 0..64
    size $length = 1..512
    func main {
      input %x: f32[$batch * $length, $length * 5 + 5]
      %y: f32[$batch * $length, $length * 5 + 5] = aten.relu.default(self=%x)
      return %y
    }
    """
    pin = parse_pin("x=[($batch@dp)($length), (5@tp)($length + 1)]")
    found = apply_pins(parse_program(text), MESH, [pin]).main.values["x"]
    assert found.dist is not None
    assert str(found.dist) == "[($batch@dp)($length), (5@tp)($length + 1)]"
    assert found.dist.problems(found.global_shape) == []


def test_sub_dimensions_of_other_sizes_are_refused() -> None:
    with pytest.raises(AnnotationError, match=r"multiply to \$batch \* 4, but the dimension has 8"):
        pinned("x=[($batch@dp)(4), -1]")


def test_a_file_names_open_sizes(tmp_path: Path) -> None:
    path = tmp_path / "pins.yaml"
    path.write_text("shard:\n  x: [($batch@dp)($length), -1]\n")
    (pin,) = load_annotations(path).pins
    assert dims_mapping_text(pin.dims_mapping[:1]) == "[($batch@dp)($length)]"  # type: ignore[arg-type]
