"""ONNX files, our own and those of onnx's backend suite: compiled, and run if they can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    defs,
    helper,
    numpy_helper,
)

from tests.cli.command import BATCH, two_layers
from tests.frontend.onnx.graphs import FLOAT, INT64, graph, model, node
from tests.given.models import model_path
from tests.mutations import messages, odd
from tests.mutations.byte_level import damage
from tests.mutations.target import Step, Target

LARGE = 64
"""Bytes of a tensor from which on its content isn't damaged: other numbers are a fine model."""

MESHES = (
    *(("--mesh", "2"), ("--mesh", "2"), ("--mesh", "2x2"), ("--mesh", "3", "--strategy", "none")),
    *(("--mesh", "2", "--strategy", "data:0"), ("--mesh", "2x2", "--strategy", "fsdp:0,tensor:1")),
)


def of_our_own() -> dict[str, ModelProto]:
    """Returns small models that between them have every kind of message."""
    return {
        "two_layers": two_layers(),
        "branches": _branches(),
        "loop": _loop(),
        "function": _function(),
        "image": _image(),
        "shapes": _shapes(),
    }


def _input() -> dict[str, tuple[int, Sequence[int | str | None]]]:
    return {"x": (FLOAT, ["batch", 4])}


def _branches() -> ModelProto:
    def branch(kind: str) -> GraphProto:
        result = helper.make_tensor_value_info("r", FLOAT, [BATCH, 4])
        return helper.make_graph([node(kind, "x", "r")], kind, [], [result])

    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        node("If", "c", "y", then_branch=branch("Relu"), else_branch=branch("Neg")),
    ]
    return model(graph(nodes, _input(), ["y"], {"zero": np.zeros((), np.float32)}))


def _loop() -> ModelProto:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", "on", "still"), node("Add", "a x", "b"), node("Identity", "b", "each")],
        "body",
        [value("i", INT64, []), value("on", TensorProto.BOOL, []), value("a", FLOAT, None)],
        [value("still", TensorProto.BOOL, []), value("b", FLOAT, None), value("each", FLOAT, None)],
    )
    nodes = [node("Loop", "n yes x", "y all", body=body)]
    stored = {"n": np.array(3), "yes": np.array(True)}
    return model(graph(nodes, _input(), ["y", "all"], stored))


def _function() -> ModelProto:
    inner = helper.make_function(
        "own",
        "Scaled",
        ["a"],
        ["b"],
        [node("Constant", "", "c", value_float=2.0), node("Mul", "a c", "b")],
        [helper.make_opsetid("", 17)],
    )
    nodes = [node("Scaled", "x", "h", domain="own"), node("Scaled", "h", "y", domain="own")]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return model(graph(nodes, _input(), ["y"]), opset_imports=imports, functions=[inner])


def _image() -> ModelProto:
    chance = np.random.default_rng(0)
    stored = {
        "w": chance.normal(size=(4, 2, 3, 3)).astype(np.float32),
        "sizes": np.array([0, -1]),
        "scale": np.array([1, 1, 2, 2], np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    }
    nodes = [
        node("Pad", "x pads", "p", mode="reflect"),
        node("Conv", "p w", "c", kernel_shape=[3, 3], strides=[1, 1], group=1),
        node("MaxPool", "c", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", "m _ scale", "r", mode="nearest"),
        node("Reshape", "r sizes", "f"),
        node("Softmax", "f", "y", axis=-1),
    ]
    given = {"x": (FLOAT, ["batch", 2, 6, 6])}
    return model(graph(nodes, given, ["y"], stored))


def _shapes() -> ModelProto:
    """Sizes that are computed, indices, and a sparse initializer."""
    stored = {
        "one": np.array([1]),
        "two": np.array([2]),
        "sizes": np.array([2, 8, 4]),
        "ids": np.array([[0, 3], [1, 1]]),
        "depth": np.array(5),
        "values": np.array([0, 1], np.float32),
        "parts": np.array([1, 3]),
    }
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "d", axis=0),
        node("Expand", "x sizes", "e"),
        node("Slice", "e one two one", "v"),
        node("ConstantOfShape", "s", "k", value=helper.make_tensor("t", FLOAT, [1], [2.0])),
        node("Split", "x parts", "p q", axis=1),
        node("OneHot", "ids depth values", "o"),
        node("Tile", "p two2", "t"),
        node("Add", "x sparse", "z"),
        node("CumSum", "z axis", "u"),
        node("TopK", "u two", "top at", axis=-1),
        node("Range", "start end step", "g"),
    ]
    stored |= {"two2": np.array([1, 2]), "axis": np.array(1)}
    stored |= {"start": np.array(0), "end": np.array(9), "step": np.array(2)}
    proto = model(graph(nodes, _input(), ["d", "v", "k", "q", "o", "t", "top", "at", "g"], stored))
    sparse = proto.graph.sparse_initializer.add(dims=[BATCH, 4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([3, 9]), "sparse_indices"))
    return proto


def prepare_own(folder: Path) -> None:
    """Writes our models."""
    for name, proto in of_our_own().items():
        (folder / f"{name}.onnx").write_bytes(proto.SerializeToString())


def prepare_suite(folder: Path) -> None:
    """Writes the small models of onnx's suite, those outside of the static profile, too.

    Inputs of integers are initializers, as they are in models from exporters: sizes, axes, indices.
    """
    from tests.onnx_suite.cases import load_cases

    for case in load_cases("node"):
        if case.proto.ByteSize() < 20_000:
            proto = _with_integers(case.proto, case.inputs)
            (folder / f"{case.name}.onnx").write_bytes(proto.SerializeToString())


def _with_integers(proto: ModelProto, inputs: Mapping[str, Any]) -> ModelProto:
    changed = ModelProto.FromString(proto.SerializeToString())
    given = [value for value in proto.graph.input if _is_integers(inputs.get(value.name))]
    for value in given:
        changed.graph.initializer.append(numpy_helper.from_array(inputs[value.name], value.name))
        changed.graph.input.remove(value)
    return changed


def _is_integers(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.int64 and value.size <= 16


def prepare_real(folder: Path) -> None:
    """Writes a real model; nothing where its package isn't there."""
    path = Path(".models") / "none" if False else model_path("silero_vad")
    (folder / "silero_vad.onnx").write_bytes(path.read_bytes())


def mutate(prepared: Path, folder: Path, chance: Random, structure: bool) -> str:
    """Writes a mutated model."""
    names = _names(prepared)
    name = chance.choice(names)
    content = (prepared / name).read_bytes()
    if structure:
        content, done = mutate_model(content, chance)
    else:
        other = (prepared / chance.choice(names)).read_bytes()
        content, done = damage(content, chance, places(content), other)
    (folder / "model.onnx").write_bytes(content)
    return f"{name}: {done}"


@cache
def _names(prepared: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in prepared.glob("*.onnx")))


def places(content: bytes) -> list[int]:
    """Returns the positions of a model that aren't within large tensors."""
    inside = bytearray(len(content))
    for tensor in _contents(ModelProto.FromString(content).graph):
        if len(tensor) > LARGE and (at := content.find(tensor)) >= 0:
            inside[at : at + len(tensor)] = b"x" * len(tensor)
    return [at for at, mark in enumerate(inside) if not mark]


def _contents(body: GraphProto) -> list[bytes]:
    found = [tensor.raw_data for tensor in body.initializer]
    for one in body.node:
        for attribute in one.attribute:
            found.append(attribute.t.raw_data)
            if attribute.HasField("g"):
                found.extend(_contents(attribute.g))
    return found


def mutate_model(content: bytes, chance: Random) -> tuple[bytes, str]:
    """Returns a model changed as a message, or in what only ONNX gives a meaning."""
    proto = ModelProto.FromString(content)
    done = []
    if chance.random() < 0.7:
        done.append(chance.choice(_CHANGES)(proto, chance))
    if not done or chance.random() < 0.2:
        done.append(messages.mutate(proto, chance))
    return proto.SerializeToString(), ", ".join(done)


def _nodes(proto: ModelProto) -> list[NodeProto]:
    found = [one for one in messages.walk(proto) if isinstance(one, NodeProto)]
    return found or [proto.graph.node.add()]


def _tensors(proto: ModelProto) -> list[TensorProto]:
    return [one for one in messages.walk(proto) if isinstance(one, TensorProto)]


def _other_operator(proto: ModelProto, chance: Random) -> str:
    one = chance.choice(_nodes(proto))
    one.op_type = chance.choice(sorted({schema.name for schema in defs.get_all_schemas()}))
    return f"{one.name or 'a node'} is {one.op_type}"


def _rewire(proto: ModelProto, chance: Random) -> str:
    """Another operand: forward, backward, or left out."""
    one = chance.choice(_nodes(proto))
    values = [name for other in _nodes(proto) for name in (*other.input, *other.output)] or [""]
    new = chance.choice([*values, ""])
    if not one.input or chance.random() < 0.2:
        one.input.append(new)
        return f"{new!r} is one more operand of {one.op_type}"
    at = chance.randrange(len(one.input))
    one.input[at] = new
    return f"{new!r} is operand {at} of {one.op_type}"


def _attribute(proto: ModelProto, chance: Random) -> str:
    """An attribute that the operator has, with a value of any type."""
    one = chance.choice(_nodes(proto))
    names = [attribute.name for attribute in one.attribute]
    if defs.has(one.op_type, one.domain):
        names += list(defs.get_schema(one.op_type, domain=one.domain).attributes)
    name = chance.choice([*names, "axis"])
    for at, old in reversed(list(enumerate(one.attribute))):
        if old.name == name:
            del one.attribute[at]
    value = chance.choice(
        [
            odd.integer(chance, -(2**63), 2**63 - 1),
            [odd.integer(chance, -(2**63), 2**63 - 1) for _ in range(chance.randrange(5))],
            odd.number(chance),
            odd.text(chance),
            helper.make_tensor("t", INT64, [1], [odd.integer(chance, -(2**63), 2**63 - 1)]),
        ]
    )
    if value == []:
        one.attribute.add(name=name, type=AttributeProto.INTS)
    else:
        one.attribute.append(helper.make_attribute(name, value))
    return f"{one.op_type}.{name}: {value!s:.50}"


def _integers(proto: ModelProto, chance: Random, small: bool = False) -> str:
    """Other numbers in an integer tensor: sizes, axes, indices."""
    whole = [one for one in _tensors(proto) if one.data_type == INT64]
    if not whole:
        return _attribute(proto, chance)
    one = chance.choice(whole)
    try:
        array = numpy_helper.to_array(one).copy()
    except Exception:
        return _dims(proto, chance)
    if not array.size or array.dtype != np.int64:
        return _dims(proto, chance)
    at = chance.randrange(array.size)
    known = int(array.reshape(-1)[at])
    value = _near(known, chance) if small else odd.integer(chance, -(2**63), 2**63 - 1)
    array.reshape(-1)[at] = value
    one.CopyFrom(numpy_helper.from_array(array, one.name))
    return f"{one.name}: {value}"


def _nudge(proto: ModelProto, chance: Random) -> str:
    """A size, axis or index that is off by little: likely a model that makes sense, or almost."""
    places: list[tuple[Any, Any]] = []
    for one in messages.walk(proto):
        if isinstance(one, AttributeProto):
            places += [(one.ints, at) for at in range(len(one.ints))]
            places += [(one, "i")] if one.type == AttributeProto.INT else []
        elif isinstance(one, TensorShapeProto.Dimension):
            places += [(one, "dim_value")] if one.dim_value else []
    if not places or chance.random() < 0.3:
        return _integers(proto, chance, small=True)
    holder, key = chance.choice(places)
    named = isinstance(key, str)
    value = _near(getattr(holder, key) if named else holder[key], chance)
    setattr(holder, key, value) if named else holder.__setitem__(key, value)
    return f"{key}: {value}"


def _near(value: int, chance: Random) -> int:
    return int(
        max(
            -(2**63),
            min(2**63 - 1, chance.choice((value - 1, value + 1, -value, 0, 1, -1, 2 * value))),
        )
    )


def _dims(proto: ModelProto, chance: Random) -> str:
    if not _tensors(proto):
        return _rewire(proto, chance)
    one = chance.choice(_tensors(proto))
    value = odd.integer(chance, -(2**63), 2**63 - 1)
    if one.dims and chance.random() < 0.8:
        one.dims[chance.randrange(len(one.dims))] = value
    else:
        one.dims.append(value)
    return f"{one.name} of {list(one.dims)}"


def _external(proto: ModelProto, chance: Random) -> str:
    """A tensor whose content lies in another file."""
    if not _tensors(proto):
        return _rewire(proto, chance)
    one = chance.choice(_tensors(proto))
    one.ClearField("raw_data")
    one.data_location = TensorProto.EXTERNAL
    for key in ("location", "offset", "length", "checksum"):
        if chance.random() < 0.7:
            value = odd.text(chance) if chance.random() < 0.5 else str(odd.integer(chance) % 10**30)
            value = chance.choice((value, "model.onnx")) if key == "location" else value
            one.external_data.add(key=key, value=value)
    return f"{one.name} in another file"


def _input_type(proto: ModelProto, chance: Random) -> str:
    if not proto.graph.input:
        return _rewire(proto, chance)
    one = chance.choice(proto.graph.input).type.tensor_type
    if chance.random() < 0.4:
        one.elem_type = chance.choice((0, 1, 2, 6, 7, 8, 9, 10, 14, 16, 17, 21, 23, 99))
        return f"an input of type {one.elem_type}"
    value = odd.integer(chance, -(2**63), 2**63 - 1)
    if one.shape.dim and chance.random() < 0.8:
        chance.choice(one.shape.dim).dim_value = value
    else:
        one.shape.dim.add(dim_value=value)
    return f"an input with a size of {value}"


def _opset(proto: ModelProto, chance: Random) -> str:
    if not proto.opset_import:
        proto.opset_import.add()
    one = chance.choice(proto.opset_import)
    one.version = chance.choice((0, -1, 1, 6, 7, 11, 13, 18, 21, 25, 99, 2**62))
    return f"opset {one.version}"


def _calls_itself(proto: ModelProto, chance: Random) -> str:
    """A function that calls itself, or one of which every next calls the last several times."""
    deep = chance.choice((1, 3, 30))
    for at in range(deep):
        called = f"f{at - 1}" if at else chance.choice((f"f{deep - 1}", "Relu"))
        domain = "" if called == "Relu" else "mutated"
        nodes = [
            node(called, "a" if i == 0 else f"v{i}", f"v{i + 1}", domain=domain) for i in range(9)
        ]
        nodes.append(node("Identity", "v9", "b"))
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("mutated", 1)]
        proto.functions.append(
            helper.make_function("mutated", f"f{at}", ["a"], ["b"], nodes, imports)
        )
    if not any(each.domain == "mutated" for each in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("mutated", 1))
    one = chance.choice(_nodes(proto))
    one.domain, one.op_type = "mutated", f"f{deep - 1}"
    return f"{deep} functions of functions"


_CHANGES = (
    *(_other_operator, _rewire, _attribute, _attribute, _integers, _integers, _dims, _external),
    *(_input_type, _opset, _calls_itself, _nudge, _nudge, _nudge, _nudge, _nudge),
)


def _steps(chance: Random) -> Sequence[Step]:
    options = chance.choice(MESHES)
    return (
        ["compile", "model.onnx", *options, "-o", "build", "-q"],
        ["run", "build", "--virtual", "--random-inputs", "0"],
    )


def _steps_bound(chance: Random) -> Sequence[Step]:
    options = chance.choice(MESHES)
    return (
        ["compile", "model.onnx", *options, "--dims", f"batch={BATCH}", "-o", "build", "-q"],
        ["run", "build", "--virtual", "--random-inputs", "0"],
        ["inspect", "build", "--serial"],
    )


def _steps_unbound(chance: Random) -> Sequence[Step]:
    """Its sizes stay open, so that what survives the reader isn't compiled: that takes long."""
    del chance
    return (["compile", "model.onnx", "--mesh", "2", "-o", "build", "-q"],)


OWN = Target("onnx", 20, prepare_own, mutate, _steps_bound)
SUITE = Target("onnx-suite", 25, prepare_suite, mutate, _steps)
REAL = Target("onnx-real", 3, prepare_real, mutate, _steps_unbound)
