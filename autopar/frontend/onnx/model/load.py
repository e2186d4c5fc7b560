"""Reads an ONNX file that nobody has vouched for.

Only the protobuf parser and the Python checks of this package see the file: onnx's checker and
shape inference are C++ code that was written for models that are meant well.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import ModelProto

from autopar.frontend.onnx.model.check import check_model
from autopar.frontend.onnx.model.external import ExternalData
from autopar.frontend.onnx.model.problems import Problems

OLDEST_OPSET = 1
PROTOBUF_LIMIT = 2**31
"""Bytes that protobuf parses at most; larger models keep their weights in external data."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that was read and found well-formed.

    Attributes:
        path: Its file, as the user gave it.
        proto: Its content; external data aren't part of it.
        files: Where its external data are.
    """

    path: str
    proto: ModelProto
    files: ExternalData


def load(path: str | os.PathLike[str], allow_external: Sequence[str] = ()) -> LoadedModel:
    """Reads and checks a model.

    Args:
        path: The ONNX file.
        allow_external: Folders, besides the model's own, from which external data may be read.

    Raises:
        ModelError: If the file can't be read, is no ONNX model, or the model is malformed. Holds
            all problems of the model.
    """
    name = os.fspath(path)
    problems = Problems(name)
    for folder in allow_external:
        if not os.path.isdir(folder):
            problems.add("", f"--allow-external {folder}: there is no such folder")
    content = _read(name, problems)
    problems.raise_if_any()
    proto = _parse(content, problems)
    problems.raise_if_any()
    files = ExternalData(Path(name).absolute().parent, tuple(Path(f) for f in allow_external))
    check_model(proto, files, OLDEST_OPSET, problems)
    problems.raise_if_any()
    return LoadedModel(name, proto, files)


def _read(path: str, problems: Problems) -> bytes:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            problems.add("", "it is no regular file", "give the path of an .onnx file")
        elif status.st_size == 0:
            problems.add("", "the file is empty", "download or export it again")
        elif status.st_size >= PROTOBUF_LIMIT:
            problems.add(
                "",
                f"it has {status.st_size} bytes, and protobuf reads at most 2 GiB",
                "save it with external data: onnx.save(model, path, save_as_external_data=True)",
            )
        else:
            return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problems.add("", f"it can't be read: {reason}", "give the path of an .onnx file")
    return b""


def _parse(content: bytes, problems: Problems) -> ModelProto:
    proto = ModelProto()
    try:
        proto.ParseFromString(content)
    except (DecodeError, RuntimeError):
        problems.add(
            "", "it isn't an ONNX file, or is damaged or cut short: protobuf can't parse it"
        )
        return proto
    if not proto.HasField("graph") or not proto.HasField("ir_version"):
        problems.add("", "it isn't an ONNX file, or is damaged: no graph or no ir_version in it")
    elif not _is_text(proto):
        problems.add("", "a name in it isn't valid UTF-8", "the file is damaged")
    elif not 3 <= proto.ir_version <= onnx.IR_VERSION:
        problems.add(
            "",
            f"IR version {proto.ir_version}, and the installed onnx {onnx.__version__} "
            f"knows 3 to {onnx.IR_VERSION}",
            "upgrade onnx if the model is newer",
        )
    return proto


@cache
def _fields_of(kind: Descriptor, field_type: int) -> tuple[str, ...]:
    """Returns the fields of a type. To look at all of them would be to copy all weights."""
    return tuple(field.name for field in kind.fields if field.type == field_type)


def _is_text(message: Message) -> bool:
    """Tells whether all strings in a message are UTF-8; protobuf hands on others as bytes."""
    for name in _fields_of(message.DESCRIPTOR, FieldDescriptor.TYPE_STRING):
        value = getattr(message, name)
        if bytes in map(type, (value,) if isinstance(value, (str, bytes)) else value):
            return False
    for name in _fields_of(message.DESCRIPTOR, FieldDescriptor.TYPE_MESSAGE):
        value = getattr(message, name)
        if not isinstance(value, Message):
            if not all(map(_is_text, value)):
                return False
        elif message.HasField(name) and not _is_text(value):
            return False
    return True
