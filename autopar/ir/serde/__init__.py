"""Programs, rank tables and manifests as bytes, in the format of `program.proto`.

Deterministic: equal contents give equal bytes. Reading refuses truncated, damaged and foreign
bytes with an error that names the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, EncodeError

from autopar.base.errors import InvalidInputError
from autopar.ir import program_pb2 as pb
from autopar.ir.builds.manifest import Manifest
from autopar.ir.deployment import Deployment
from autopar.ir.memory.transfers import is_on_host
from autopar.ir.program import Program
from autopar.ir.serde.deployment import (
    deployment_from_proto,
    manifest_from_proto,
    write_deployment,
    write_manifest,
)
from autopar.ir.serde.read import program_from_proto
from autopar.ir.serde.tables import Corrupt
from autopar.ir.serde.write import write_program
from autopar.ir.used_sizes import counted_sizes

FORMAT_VERSION = 16
"""The newest version of the format that this code understands."""

WRITTEN_VERSION = 8
"""The version that this code writes where a file has nothing that only a newer one describes."""

MINIMUM_READER_VERSION = 2
"""The oldest version whose readers understand what this code writes."""

PARTS_VERSION = 4
"""The oldest version whose readers understand ports that are parts of a larger tensor."""

SLICES_VERSION = 6
"""The oldest version whose readers understand scalars that only ranks of a slice hold."""

SIZES_VERSION = 9
"""The oldest version whose readers understand sizes that are open."""

STEPS_VERSION = 10
"""The oldest version whose readers understand open sizes that are multiples of a number."""

RELATIONS_VERSION = 11
"""The oldest version whose readers check relations between open sizes."""

BOXES_VERSION = 12
"""The oldest version whose readers understand parts of a mesh at several indices of an axis."""

LOOPS_VERSION = 13
"""The oldest version whose readers understand ops that run once for each iteration."""

NESTED_VERSION = 14
"""The oldest version whose readers understand loops that are told apart by their names."""

HOST_VERSION = 15
"""The oldest version whose readers know that hosts compute ops."""

RUNS_VERSION = 15
"""The oldest version whose readers understand parts of a mesh that are a run of an axis."""

COUNTED_VERSION = 16
"""The oldest version whose readers understand repeated functions that know their iteration."""

DIGEST_VERSION = 7
"""The oldest version whose manifests have a digest of themselves."""

MAX_BYTES = (1 << 31) - 1
"""protobuf writes larger messages without an error, but nothing can read them."""

MAGIC = "autopar"

Content = TypeVar("Content")


def program_to_bytes(program: Program) -> bytes:
    """Returns a program as bytes.

    Equal programs give equal bytes. What is not stored: the bits of a NaN, and the order of the
    mappings of functions and values, neither of which means anything.

    Raises:
        InvalidInputError: If it would take more than 2 GiB, or names a value that doesn't exist.
    """
    what = f"program {program.name!r}"
    ports = (*program.signature.inputs, *program.signature.outputs)
    oldest = PARTS_VERSION if any(port.part for port in ports) else MINIMUM_READER_VERSION
    if any(len(port.box) > len(port.shape) for port in ports):
        oldest = SLICES_VERSION

    def write(file: pb.File) -> None:
        write_program(program, file.program)
        if any(expr.kind == pb.Expr.SIZE for expr in file.program.exprs):
            has_steps = any(expr.step for expr in file.program.exprs)
            needed = STEPS_VERSION if has_steps else SIZES_VERSION
            needed = RELATIONS_VERSION if program.relations else needed
            file.format_version = file.minimum_reader_version = needed
        if any(mesh.slice.others for mesh in file.program.meshes):
            file.format_version = file.minimum_reader_version = BOXES_VERSION
        if any(op.times for function in file.program.functions for op in function.ops):
            file.format_version = file.minimum_reader_version = LOOPS_VERSION
        if any(op.loops for function in file.program.functions for op in function.ops):
            file.format_version = file.minimum_reader_version = NESTED_VERSION
        if any(map(is_on_host, program.main.ops)):
            file.format_version = file.minimum_reader_version = HOST_VERSION
        if any(mesh.slice.length for mesh in file.program.meshes):
            file.format_version = file.minimum_reader_version = RUNS_VERSION
        if counted_sizes(program):
            file.format_version = file.minimum_reader_version = COUNTED_VERSION

    return _to_bytes(write, what, oldest)


def program_from_bytes(data: bytes, source: str = "program") -> Program:
    """Returns the program that `program_to_bytes` wrote.

    Args:
        data: The bytes.
        source: Where they come from, for errors.

    Raises:
        InvalidInputError: If the bytes aren't a program, are damaged, or need a newer autopar.
    """
    file = _parse(data, source, "program")
    return _checked(lambda: program_from_proto(file.program), source)


def deployment_to_bytes(deployment: Deployment) -> bytes:
    """Returns a rank table as bytes, without its programs.

    Raises:
        InvalidInputError: If it would take more than 2 GiB.
    """
    return _to_bytes(lambda file: write_deployment(deployment, file.deployment), "rank table")


def deployment_from_bytes(
    data: bytes, programs: Sequence[Program] = (), source: str = "rank table"
) -> Deployment:
    """Returns the rank table that `deployment_to_bytes` wrote.

    Args:
        data: The bytes.
        programs: Its programs, in their order; without them, `Deployment.programs` is empty.
        source: Where the bytes come from, for errors.

    Raises:
        InvalidInputError: As for `program_from_bytes`, or if the programs are too few or many.
    """
    file = _parse(data, source, "deployment")
    return _checked(lambda: deployment_from_proto(file.deployment, programs), source)


def manifest_to_bytes(manifest: Manifest) -> bytes:
    """Returns a manifest as bytes, the last of which are the digest of those before."""
    data = _to_bytes(lambda file: write_manifest(manifest, file.manifest), "manifest")
    # Messages in a row are one message with the fields of all.
    return data + _digest_field(data)


def manifest_from_bytes(data: bytes, source: str = "manifest") -> Manifest:
    """Returns the manifest that `manifest_to_bytes` wrote; errors as `program_from_bytes`."""
    file = _parse(data, source, "manifest")
    field = pb.File(sha256=file.sha256).SerializeToString()
    digested = field or file.format_version >= DIGEST_VERSION
    if digested and field != _digest_field(data.removesuffix(field)):
        raise InvalidInputError(
            f"{source}: damaged: its content isn't what was written; compile the model again, or"
            " copy the whole folder again"
        )
    return _checked(lambda: manifest_from_proto(file.manifest), source)


def content_of(data: bytes, source: str = "file") -> str:
    """Returns what a file holds: `program`, `deployment` or `manifest`.

    Raises:
        InvalidInputError: If it is no file of autopar's, or needs a newer autopar.
    """
    return _parse(data, source).WhichOneof("content") or ""


def _digest_field(data: bytes) -> bytes:
    return pb.File(sha256=hashlib.sha256(data).digest()).SerializeToString()


def _to_bytes(
    write: Callable[[pb.File], None], what: str, oldest: int = MINIMUM_READER_VERSION
) -> bytes:
    file = pb.File(magic=MAGIC, format_version=WRITTEN_VERSION, minimum_reader_version=oldest)
    try:
        write(file)
        size = file.ByteSize()
        if size > MAX_BYTES:
            raise InvalidInputError(
                f"{what} takes {size} bytes, but a protobuf file can't have more than {MAX_BYTES};"
                " give repeated layers a function of their own, and keep weights out of arguments"
            )
        return file.SerializeToString(deterministic=True)
    except RecursionError as error:
        raise InvalidInputError(f"{what} can't be stored: an argument is too deep") from error
    except (ValueError, EncodeError) as error:
        raise InvalidInputError(f"{what} can't be stored: {error}") from error


def _parse(data: bytes, source: str, wanted: str | None = None) -> pb.File:
    file = pb.File()
    try:
        file.ParseFromString(data)
    except DecodeError as error:
        raise InvalidInputError(
            f"{source}: not a file of autopar's, or truncated: protobuf can't parse its"
            f" {len(data)} bytes; compile the model again"
        ) from error
    if file.magic != MAGIC:
        raise InvalidInputError(
            f"{source}: not a file of autopar's ({len(data)} bytes); expected a .pb file that"
            " `autopar compile` wrote"
        )
    if file.minimum_reader_version > FORMAT_VERSION:
        raise InvalidInputError(
            f"{source}: has format version {file.format_version} and needs a reader of version"
            f" {file.minimum_reader_version} or newer, this is version {FORMAT_VERSION}; update"
            " autopar, or compile the model again with this one"
        )
    content = file.WhichOneof("content")
    if content is None:
        raise InvalidInputError(f"{source}: has no content; the file is truncated or damaged")
    if wanted is not None and content != wanted:
        raise InvalidInputError(f"{source}: holds a {content}, not a {wanted}")
    return file


def _checked(read: Callable[[], Content], source: str) -> Content:
    try:
        return read()
    except Corrupt as error:
        raise InvalidInputError(f"{source}: damaged: {error}; compile the model again") from error
