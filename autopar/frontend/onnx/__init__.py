"""The ONNX frontend: `import_onnx` turns a file into a serial program and its weights.

    load        read the file, check it
    bind        give every input a static shape
    walk        run the graph node by node; `control` unrolls, `record` computes what is known
                and has the rest traced; `ops` says how each operator is expressed
    trace       record what is run on fake tensors as a graph of ATen ops
    importing   all of it, in order

Importing this package is cheap: onnx and torch are loaded by `import_onnx`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from autopar.base.arguments import MAPPING, PATH, TEXT, WHOLE, Kind, expect
from autopar.frontend.onnx.imported import ImportedModel
from autopar.ir.expr.ranges import SPELLINGS

__all__ = ["ImportedModel", "import_onnx"]

_SHAPE = Kind(
    lambda value: isinstance(value, (list, tuple)) and all(map(WHOLE.fits, value)),
    "a shape, as [8, 128]",
)
_SIZE = Kind(lambda value: WHOLE.fits(value) or isinstance(value, str), f"{SPELLINGS}")
_FOLDERS = Kind(
    lambda value: isinstance(value, (list, tuple)) and all(map(PATH.fits, value)),
    "a list of folders",
)


def import_onnx(
    path: str | os.PathLike[str],
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | str] | None = None,
    allow_external: Sequence[str | os.PathLike[str]] = (),
    state: Mapping[str, str] | None = None,
) -> ImportedModel:
    """Imports an ONNX model of any opset.

    Args:
        path: The model's file.
        input_shapes: Shapes by input name. They bind the symbols of the input's dimensions, too.
        dims: Sizes by symbolic dimension (`dim_param`): 8 binds one, "1:64" says what it may be,
            and "8~1:64" for which size to plan, too. Others stay open.
        allow_external: Folders, besides the model's own, that external data may be read from.
        state: Outputs that are inputs of the next call, by input, as "past_key_values.*":
            "present.*". The program keeps them; they begin as zeros, open sizes of theirs as small
            as may be.

    Raises:
        autopar.frontend.onnx.model.problems.ModelError: If the file can't be read or is
            malformed, a size is unbound or contradicted, or nodes can't be expressed. Holds all
            problems.
    """
    from autopar.frontend.onnx.importing import import_model

    expect(PATH, path=path)
    expect(_FOLDERS, allow_external=allow_external)
    _expect_each(_SIZE, dims=dims)
    _expect_each(_SHAPE, input_shapes=input_shapes)
    _expect_each(TEXT, state=state)
    folders = tuple(os.fspath(folder) for folder in allow_external)
    return import_model(os.fspath(path), input_shapes or {}, dims or {}, folders, state or {})


def _expect_each(kind: Kind, **given: Mapping[str, object] | None) -> None:
    expect(MAPPING.or_none, **given)
    for argument, entries in given.items():
        for name, value in (entries or {}).items():
            expect(kind, **{f"{argument}[{name!r}]": value})
