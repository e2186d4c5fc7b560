"""Files that are broken, or up to no good: each is refused with a message that helps."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from autopar.base.errors import AutoparError
from autopar.frontend.onnx import import_onnx
from autopar.frontend.onnx.model.load import load
from autopar.frontend.onnx.model.problems import ModelError
from tests.frontend.onnx.graphs import FLOAT, graph, imported, model, node, run, save

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def linear() -> ModelProto:
    nodes = [node("MatMul", "x w", "h", name="fc"), node("Relu", "h", "y", name="act")]
    return model(graph(nodes, {"x": (FLOAT, [2, 3])}, ["y"], {"w": np.ones((3, 4), np.float32)}))


def message(path: Path, **options: object) -> str:
    with pytest.raises(ModelError) as raised:
        import_onnx(path, **options)  # type: ignore[arg-type]
    return str(raised.value).replace(str(path), "MODEL")


def refusal(folder: Path, change: Callable[[ModelProto], object]) -> str:
    proto = linear()
    change(proto)
    return message(save(folder, proto))


def test_missing_file(tmp_path: Path) -> None:
    assert "it can't be read: No such file or directory" in message(tmp_path / "none.onnx")


def test_folder(tmp_path: Path) -> None:
    assert "it is no regular file" in message(tmp_path)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    assert message(path) == (
        "can't import MODEL:\n  - the file is empty (download or export it again)"
    )


def test_truncated(tmp_path: Path) -> None:
    path = save(tmp_path, linear())
    path.write_bytes(path.read_bytes()[:-20])
    assert "damaged or cut short: protobuf can't parse it" in message(path)


def test_random_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(random.Random(0).randbytes(5000))
    assert "it isn't an ONNX file" in message(path)


def test_another_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(numpy_helper.from_array(X, "x").SerializeToString())
    assert "it isn't an ONNX file" in message(path)


def test_bad_text(tmp_path: Path) -> None:
    path = save(tmp_path, linear())
    path.write_bytes(path.read_bytes().replace(b"act", b"\xff\xfe\xff"))
    assert "a name in it isn't valid UTF-8" in message(path)


def test_newer_ir(tmp_path: Path) -> None:
    text = refusal(tmp_path, lambda m: setattr(m, "ir_version", 99))
    assert "IR version 99, and the installed onnx" in text


@pytest.mark.parametrize(
    ("version", "advice"), [(0, "onnx.version_converter"), (999, "export with an older opset")]
)
def test_opset(tmp_path: Path, version: int, advice: str) -> None:
    text = refusal(tmp_path, lambda m: setattr(m.opset_import[0], "version", version))
    assert f"opset {version}; 1 to " in text
    assert advice in text


def test_no_opset(tmp_path: Path) -> None:
    assert "says no opset" in refusal(tmp_path, lambda m: m.ClearField("opset_import"))


def test_cycle(tmp_path: Path) -> None:
    def close(proto: ModelProto) -> None:
        proto.graph.node[0].input[0] = "y"

    text = refusal(tmp_path, close)
    assert "node 'fc': reads 'y' before it is defined" in text
    assert "the graph has a cycle: fc -> act -> fc" in text


def test_unsorted(tmp_path: Path) -> None:
    def swap(proto: ModelProto) -> None:
        nodes = list(proto.graph.node)
        del proto.graph.node[:]
        proto.graph.node.extend(reversed(nodes))

    text = refusal(tmp_path, swap)
    assert "its nodes aren't in topological order" in text
    assert "cycle" not in text


def test_undefined_name(tmp_path: Path) -> None:
    def misname(proto: ModelProto) -> None:
        proto.graph.node[1].input[0] = "nowhere"

    assert "node 'act': reads 'nowhere', which nothing defines" in refusal(tmp_path, misname)


def test_name_defined_twice(tmp_path: Path) -> None:
    text = refusal(tmp_path, lambda m: m.graph.node.append(node("Abs", "x", "h", name="again")))
    assert "node 'again': defines 'h', which is already defined" in text


def test_unknown_operator(tmp_path: Path) -> None:
    text = refusal(tmp_path, lambda m: setattr(m.graph.node[1], "op_type", "Relux"))
    assert "there is no operator 'Relux'; did you mean Relu" in text


def test_operator_of_a_later_opset(tmp_path: Path) -> None:
    text = refusal(tmp_path, lambda m: setattr(m.graph.node[1], "op_type", "Gelu"))
    assert "Gelu isn't in opset 17 (its newest definition is of opset 20)" in text


def test_unknown_domain(tmp_path: Path) -> None:
    text = refusal(tmp_path, lambda m: setattr(m.graph.node[1], "domain", "acme.ops"))
    assert "node 'act': Relu is of the unknown domain 'acme.ops'" in text


def test_unknown_attribute(tmp_path: Path) -> None:
    def add(proto: ModelProto) -> None:
        proto.graph.node[0].attribute.append(helper.make_attribute("transposeA", 1))

    assert "MatMul of opset 13 has no attribute 'transposeA'" in refusal(tmp_path, add)


def test_missing_input(tmp_path: Path) -> None:
    text = refusal(tmp_path, lambda m: m.graph.node[0].input.pop())
    assert "node 'fc' (MatMul): has 1 inputs, the operator takes 2" in text


def test_wrong_byte_count(tmp_path: Path) -> None:
    def cut(proto: ModelProto) -> None:
        proto.graph.initializer[0].raw_data = b"1234"

    text = refusal(tmp_path, cut)
    assert "initializer 'w': dims [3, 4] of FLOAT need 48 bytes, it has 4" in text


def test_negative_dims(tmp_path: Path) -> None:
    def negate(proto: ModelProto) -> None:
        proto.graph.initializer[0].dims[0] = -3

    assert "initializer 'w': negative dims [-3, 4]" in refusal(tmp_path, negate)


def test_strings(tmp_path: Path) -> None:
    def add(proto: ModelProto) -> None:
        text = helper.make_tensor("words", TensorProto.STRING, [1], [b"hello"])
        proto.graph.initializer.append(text)

    text = refusal(tmp_path, add)
    assert "initializer 'words': element type STRING isn't supported" in text


def test_recursive_function(tmp_path: Path) -> None:
    def add(proto: ModelProto) -> None:
        call = helper.make_node("F", ["a"], ["b"], domain="own")
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        proto.functions.append(helper.make_function("own", "F", ["a"], ["b"], [call], imports))

    assert "functions call each other in a circle: F -> F" in refusal(tmp_path, add)


def test_the_same_problem_of_many_nodes_is_told_once(tmp_path: Path) -> None:
    domain = "ai.onnx.ml"

    def add(proto: ModelProto) -> None:
        for at, operator in enumerate(["Imputer"] * 5 + ["FeatureVectorizer"] * 2):
            proto.graph.node.append(node(operator, "h", f"y{at}", name=f"n{at}", domain=domain))
        proto.opset_import.append(helper.make_opsetid(domain, 1))

    lines = [line.split(" (define")[0] for line in refusal(tmp_path, add).splitlines()]
    assert [line.removeprefix("  - node ").replace(domain, "ml") for line in lines[1:]] == [
        "'n0' (ml.Imputer, opset 1), and 4 more: the operator Imputer isn't supported",
        "'n5' (ml.FeatureVectorizer, opset 1): the operator FeatureVectorizer isn't supported",
        "'n6' (ml.FeatureVectorizer, opset 1): the operator FeatureVectorizer isn't supported",
    ]


def test_all_problems_at_once(tmp_path: Path) -> None:
    def spoil(proto: ModelProto) -> None:
        proto.graph.node[0].input[0] = "nowhere"
        proto.graph.node[1].op_type = "Relux"
        proto.graph.initializer[0].raw_data = b""

    text = refusal(tmp_path, spoil)
    assert all(word in text for word in ("nowhere", "Relux", "it has 0"))


def external(folder: Path, location: str, offset: int = 0, length: int | None = None) -> Path:
    """A model whose weight is in another file."""
    proto = linear()
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset)}
    if length is not None:
        entries["length"] = str(length)
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    folder.mkdir(exist_ok=True)
    return save(folder, proto)


WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"skip" + WEIGHT.tobytes())
    result = import_onnx(external(tmp_path, "w.bin", offset=4, length=48))
    np.testing.assert_allclose(run(result, {"x": X})["y"], X @ WEIGHT)


def test_external_data_is_mapped_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(4096) + WEIGHT.tobytes())
    result = import_onnx(external(tmp_path, "w.bin", offset=4096))
    address = result.weights["w"].data_ptr()
    with open("/proc/self/maps") as maps:
        homes = [line for line in maps if str(tmp_path / "w.bin") in line]
    assert any(
        int(start, 16) <= address < int(end, 16)
        for start, end in (line.split()[0].split("-") for line in homes)
    )


@pytest.mark.parametrize("location", ["../w.bin", "sub/../../w.bin"])
def test_external_data_above(tmp_path: Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    (tmp_path / "model" / "sub").mkdir(parents=True)
    path = external(tmp_path / "model", location)
    text = message(path)
    assert f"external data {location!r} leaves the model's folder" in text
    assert f"--allow-external {tmp_path}" in text
    import_onnx(path, allow_external=[tmp_path])


def test_external_data_absolute(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = external(tmp_path / "model", str(tmp_path / "w.bin"))
    assert "is an absolute path, outside the model's folder" in message(path)
    import_onnx(path, allow_external=[tmp_path])


def test_external_data_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = external(tmp_path / "model", "link.bin")
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "w.bin")
    assert "is a link that leads to" in message(path)
    import_onnx(path, allow_external=[tmp_path])


def test_external_data_that_is_a_hard_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(WEIGHT.tobytes())
    path = external(tmp_path / "model", "hard.bin")
    os.link(tmp_path / "secret", tmp_path / "model" / "hard.bin")
    assert "'hard.bin' is a hard link, so it may really lie elsewhere" in message(path)
    import_onnx(path, allow_external=[tmp_path / "model"])


def test_external_data_too_short(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(40))
    text = message(external(tmp_path, "w.bin"))
    assert "needs bytes 0 to 48 of external data 'w.bin', which has 40" in text


@pytest.mark.parametrize("location", ["none.bin", "", "."])
def test_external_data_missing(tmp_path: Path, location: str) -> None:
    assert f"external data {location!r} " in message(external(tmp_path, location))


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    proto = onnx.load(external(tmp_path, "none.bin"), load_external_data=False)
    for number in range(20):
        proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
        proto.graph.initializer[-1].name = f"more.{number}"
    text = message(save(tmp_path, proto))
    assert text.count("none.bin") == 1
    assert "initializer 'w' and 20 more: external data 'none.bin'" in text


def test_external_data_that_would_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in message(external(tmp_path, "pipe"))


def test_mutations_give_clean_errors(tmp_path: Path) -> None:
    source = linear().SerializeToString()
    path = tmp_path / "model.onnx"
    accepted = []
    for seed in range(500):
        content = mutated(source, random.Random(seed))
        path.write_bytes(content)
        try:
            load(path)
            accepted.append(content)
        except ModelError:
            pass
    assert 20 < len(accepted) < 200
    for content in accepted[:20]:  # export takes its time
        path.write_bytes(content)
        with contextlib.suppress(AutoparError):
            import_onnx(path)


def mutated(source: bytes, chance: random.Random) -> bytes:
    content = bytearray(source)
    if chance.random() < 0.1:
        return bytes(content[: chance.randrange(len(content))])
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = chance.randrange(len(content))
        if chance.random() < 0.7:
            content[at] = chance.randrange(256)
        elif chance.random() < 0.5:
            del content[at : at + chance.randrange(1, 8)]
        else:
            content[at:at] = chance.randbytes(chance.randrange(1, 8))
    return bytes(content)


def test_huge_constant(tmp_path: Path) -> None:
    shape = {"shape": np.array([2**20, 2**20], np.int64)}
    nodes = [node("ConstantOfShape", "shape", "c", name="huge"), node("Add", "x c", "y")]
    proto = model(graph(nodes, {"x": (FLOAT, [1])}, ["y"], shape))
    text = message(save(tmp_path, proto))
    assert "node 'huge' (ConstantOfShape, opset 17): its result of shape [1048576, 1048576]" in text
    assert "4398046511104 bytes; at most 2147483648" in text


def test_growing_constants(tmp_path: Path) -> None:
    nodes = [
        node("Concat", f"c{at} c{at}", f"c{at + 1}", axis=0, name=f"n{at}") for at in range(60)
    ]
    nodes.append(node("Add", "x c60", "y"))
    proto = model(graph(nodes, {"x": (FLOAT, [1])}, ["y"], {"c0": np.ones(1024, np.float32)}))
    text = message(save(tmp_path, proto))
    assert "node 'n19' (Concat, opset 17)" in text
    assert "4294967296 bytes; at most 2147483648" in text


def test_unused_options_are_errors(tmp_path: Path) -> None:
    text = message(save(tmp_path, linear()), allow_external=[str(tmp_path / "none")])
    assert "there is no such folder" in text


def test_ignored_sharding_is_reported(tmp_path: Path) -> None:
    proto = linear()
    proto.configuration.add(name="pair", num_devices=2)
    proto.graph.node[0].device_configurations.add(configuration_id="pair")
    report = imported(tmp_path, proto).report
    assert [entry.category for entry in report] == ["ignored", "ignored"]
    assert "2 devices" in report[0].detail
    assert report[1].loc.name == "fc"
