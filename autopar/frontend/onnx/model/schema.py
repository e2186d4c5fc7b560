"""A node against the schema of its operator: version, counts of inputs and outputs, attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto
from onnx.defs import OpSchema, SchemaError
from onnx.helper import make_tensor_type_proto

from autopar.base.errors import near_misses
from autopar.frontend.onnx.model.problems import Problems
from autopar.frontend.onnx.trace.node import Node
from autopar.frontend.onnx.trace.values import Known, Sized, Traced, Value


def normal_domain(domain: str) -> str:
    """Returns the domain with the default one, which has two spellings, spelled `""`."""
    return "" if domain == "ai.onnx" else domain


def function_key(function: FunctionProto) -> tuple[str, str, str]:
    """Returns what identifies a local function: domain, name and overload."""
    return normal_domain(function.domain), function.name, function.overload


def find_schema(op_type: str, domain: str, opset: int) -> OpSchema | None:
    """Returns the schema of an operator as of an opset, or None if it isn't in it."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except SchemaError:
        return None


def check_node(label: str, node: NodeProto, domain: str, opset: int, problems: Problems) -> None:
    """Notes where `node` doesn't fit the schema of its operator."""
    schema = find_schema(node.op_type, domain, opset)
    if schema is None:
        problems.add(label, *_unknown_operator(node.op_type, domain, opset))
        return
    label = f"{label} ({node.op_type})"
    if schema.deprecated:
        problems.add(label, f"{node.op_type} is deprecated as of opset {schema.since_version}")
        return
    _check_count(label, "input", node.input, schema.min_input, schema.max_input, problems)
    _check_count(label, "output", node.output, schema.min_output, schema.max_output, problems)
    for formal, name in zip(schema.inputs, node.input, strict=False):
        if not name and formal.option == OpSchema.FormalParameterOption.Single:
            problems.add(label, f"lacks its input {formal.name}")
    _check_attributes(label, node, schema, problems)


def _unknown_operator(op_type: str, domain: str, opset: int) -> tuple[str, str]:
    try:
        since = onnx.defs.get_schema(op_type, domain).since_version
    except SchemaError:
        names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == domain}
        return f"there is no operator {op_type!r}{near_misses(op_type, sorted(names))}", ""
    return f"{op_type} isn't in opset {opset}", f"its newest definition is of opset {since}"


def _check_count(
    label: str, kind: str, names: Sequence[str], least: int, most: int, problems: Problems
) -> None:
    count = len(names)
    if not least <= count <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        problems.add(label, f"has {count} {kind}s, the operator takes {wanted}")


def _check_attributes(label: str, node: NodeProto, schema: OpSchema, problems: Problems) -> None:
    seen: set[str] = set()
    for attribute in node.attribute:
        if attribute.name in seen:
            problems.add(label, f"has the attribute {attribute.name!r} twice")
        seen.add(attribute.name)
        formal: Any = schema.attributes.get(attribute.name)
        if formal is None:
            problems.add(
                label,
                f"{node.op_type} of opset {schema.since_version} has no attribute "
                f"{attribute.name!r}{near_misses(attribute.name, schema.attributes)}",
            )
        elif attribute.type != int(formal.type.value):
            have = AttributeProto.AttributeType.items()
            names = {number: name for name, number in have}
            got = names.get(attribute.type, str(attribute.type))
            problems.add(label, f"attribute {attribute.name!r} is {got}, not {formal.type.name}")
    for name, formal in schema.attributes.items():
        if formal.required and name not in seen:
            problems.add(label, f"lacks the attribute {name!r}")


def schema_function(node: Node, inputs: Sequence[Value]) -> FunctionProto | None:
    """Returns the body that onnx's schema gives an operator in terms of others, or None.

    Args:
        node: The node; some bodies depend on its attributes.
        inputs: Its inputs; some bodies depend on their types.
    """
    # onnx's type hints lack what schemas tell of functions.
    schema: Any = find_schema(node.op_type, node.domain, node.opset)
    if schema is None:
        return None
    if schema.has_function:
        version = _version_of(schema.function_opset_versions, node.opset)
        return _parse(schema.get_function_with_opset_version(version))
    if not schema.has_context_dependent_function:
        return None
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    del proto.attribute[:]
    proto.attribute.extend(node.attributes.values())
    types = [_type_of(value).SerializeToString() for value in inputs]
    version = _version_of(schema.context_dependent_function_opset_versions, node.opset)
    body = schema.get_context_dependent_function_with_opset_version(
        version, proto.SerializeToString(), types
    )
    return _parse(body)


def has_body(node: Node) -> bool:
    """Returns whether onnx gives an operator a body for some types of its inputs."""
    schema: Any = find_schema(node.op_type, node.domain, node.opset)
    return schema is not None and schema.has_context_dependent_function


def _version_of(versions: Sequence[int], opset: int) -> int:
    """Returns the version of a body that is nearest to an opset; each imports its own."""
    return max((version for version in versions if version <= opset), default=min(versions))


def schema_defaults(node: Node) -> dict[str, AttributeProto]:
    """Returns the default values of an operator's attributes, which function bodies refer to."""
    schema = find_schema(node.op_type, node.domain, node.opset)
    attributes: Mapping[str, Any] = schema.attributes if schema is not None else {}
    defaults = {name: formal.default_value for name, formal in attributes.items()}
    return {name: value for name, value in defaults.items() if value is not None and value.name}


def _parse(body: bytes) -> FunctionProto | None:
    function = FunctionProto()
    function.ParseFromString(body)
    return function if function.node else None


def _type_of(value: Value) -> TypeProto:
    if isinstance(value, Known):
        return make_tensor_type_proto(value.kind.number, tuple(value.tensor.shape))
    if isinstance(value, Sized):
        return make_tensor_type_proto(value.kind.number, value.array.shape)
    if isinstance(value, Traced):
        sizes = [size if isinstance(size, int) else None for size in value.fake.shape]
        return make_tensor_type_proto(value.kind.number, sizes)
    return TypeProto()
