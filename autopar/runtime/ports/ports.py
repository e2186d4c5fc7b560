"""Inputs and outputs as the user sees them: checked, cut into a rank's pieces, put together."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autopar.base.arguments import shown
from autopar.base.errors import InvalidInputError, near_misses
from autopar.base.units import counted
from autopar.ir.expr.expression import IntExpr, shape_str
from autopar.ir.memory.transfers import hosted
from autopar.ir.program import ASSUMPTION, SEED, STORED_ROLES, WRITTEN, Port, Program
from autopar.runtime.collectives.host_transfers import pinned
from autopar.runtime.kernels.table import IR_DTYPES, TORCH_DTYPES
from autopar.runtime.ports.boxes import Box, Region, box_shape, narrowed, resolve_box, take
from autopar.runtime.ports.dense import odd_kind
from autopar.runtime.ports.rates import is_rate
from autopar.runtime.ports.staging import moved
from autopar.runtime.weights.names import check_names
from autopar.runtime.weights.weights import WeightFile

GIVEN_LATER = ("parameter", "buffer", "state", "constant")
"""Roles of stored inputs whose values may be absent from a build."""

SHOWN = 5
"""Names that an error lists."""

Arrays = Mapping[str, Any]
"""Global tensors by name: torch tensors, or anything that `torch.as_tensor` takes."""


def port_box(port: Port, coords: Mapping[str, int]) -> Box:
    """Returns the piece of an input or output that the rank with these coordinates holds."""
    return resolve_box(port.box, port.shape, coords)


def is_weight(port: Port) -> bool:
    """Returns whether an input's value comes with the program."""
    return port.role in STORED_ROLES


def is_open_state(port: Port) -> bool:
    """Returns whether a stored input begins with the first call, since its sizes are open."""
    return is_weight(port) and not all(isinstance(size, int) for size in port.shape)


def user_inputs(program: Program) -> tuple[Port, ...]:
    """Returns the inputs whose values the user gives, unless they have a default."""
    return tuple(port for port in program.signature.inputs if not is_weight(port))


def input_types(program: Program) -> dict[str, tuple[str, tuple[IntExpr, ...]]]:
    """Returns what the user's inputs have to be, dtype and global shape, by label."""
    return {port.user_label: (port.dtype, port.shape) for port in user_inputs(program)}


def default_of(port: Port) -> float | None:
    """Returns what the elements of an input are if it is left out; None if it may not be."""
    return 0 if port.role == SEED and port.fill is None else port.fill


def plain_outputs(program: Program) -> list[int]:
    """Returns the outputs that aren't new content of what the program stores, by position."""
    updates = {output for output, _ in program.main.aliases}
    ports = program.signature.outputs
    return [at for at in all_outputs(program) if ports[at].name not in updates]


def all_outputs(program: Program) -> list[int]:
    """Returns the outputs that a user may want to see, by position."""
    ports = program.signature.outputs
    return [at for at, port in enumerate(ports) if port.role not in (ASSUMPTION, WRITTEN)]


def seed_input(program: Program) -> Port | None:
    """Returns the input that random numbers depend on, if there are any in the program."""
    return next((port for port in program.signature.inputs if port.role == SEED), None)


def with_seed(program: Program, inputs: Arrays, seed: int | None) -> dict[str, Any]:
    """Returns inputs by label with this seed; as they are without one.

    Raises:
        InvalidInputError: If the program has no use for a seed, or `inputs` has one.
    """
    port = seed_input(program)
    if seed is None:
        return dict(inputs)
    if port is None:
        raise InvalidInputError("a seed is given, but the program draws no random numbers")
    label = port.user_label
    if label in inputs:
        raise InvalidInputError(f"a seed is given, and another one as input {label!r}; give one")
    return {**inputs, label: seed}


def labelled_inputs(program: Program, inputs: Arrays | Sequence[Any]) -> Arrays:
    """Returns inputs by label, also where they were given in the order of the program.

    Those that have a default are not among these.

    Raises:
        InvalidInputError: If they are neither, or there are more or fewer than the program has.
    """
    if isinstance(inputs, Mapping):
        return inputs
    labels = [port.user_label for port in user_inputs(program) if default_of(port) is None]
    known = ", ".join(map(repr, labels[:SHOWN])) + (", ..." if len(labels) > SHOWN else "")
    if not isinstance(inputs, (list, tuple)):
        raise InvalidInputError(
            f"inputs are a {type(inputs).__name__}; give them by label, as {{{labels[0]!r}: ...}},"
            f" or in a list in the order {known}"
        )
    if len(inputs) != len(labels):
        raise InvalidInputError(
            f"{counted(len(inputs), 'input')} given by position, but the program has"
            f" {len(labels)}: {known}; give them by label"
        )
    return dict(zip(labels, inputs, strict=True))


def check_inputs(program: Program, inputs: Arrays) -> dict[str, Tensor]:
    """Returns the user's inputs as tensors by value name, all problems with them found first.

    Args:
        program: A program at any level; its signature says what is expected.
        inputs: Global tensors by label.

    Raises:
        InvalidInputError: If inputs are missing, unknown, or of the wrong shape or dtype.
    """
    ports = {port.user_label: port for port in user_inputs(program)}
    problems = [
        f"there is no input {label!r}{near_misses(label, ports) or _listing(ports)}"
        for label in inputs
        if label not in ports
    ]
    tensors: dict[str, Tensor] = {}
    for label, port in ports.items():
        default = default_of(port)
        if label not in inputs and default is not None:
            tensors[port.name] = torch.full(
                port.known_shape, default, dtype=TORCH_DTYPES[port.dtype]
            )
            continue
        if label not in inputs:
            problems.append(f"input {label!r} is missing; it is {_expected(port)}")
            continue
        if kind := odd_kind(inputs[label]):
            problems.append(f"input {label!r} is {kind}")
            continue
        try:
            tensors[port.name] = _tensor(inputs[label], port)
        except (TypeError, ValueError, RuntimeError):
            problems.append(_no_tensor(label, port, inputs[label]))
            continue
        problems.extend(_mismatch(label, port, tensors[port.name]))
    if problems:
        raise InvalidInputError("wrong inputs:\n" + "\n".join(f"  - {p}" for p in problems))
    return tensors


class RankArguments:
    """The arguments of a rank's `main`: its pieces of the inputs, and its weights.

    Args:
        program: The rank's specialized program.
    """

    def __init__(self, program: Program) -> None:
        self._inputs = program.main.inputs
        self._given = {port.name: (port, holds_all(port)) for port in user_inputs(program)}

    def of(
        self, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], device: str
    ) -> tuple[Tensor, ...]:
        """Returns the arguments of a call.

        Args:
            tensors: What `check_inputs` returned.
            weights: The rank's weights by value name.
            device: Where the pieces go.
        """
        mine = {
            name: self._piece(name, tensors[name], device)
            for name in self._given
            if name not in weights
        }
        return tuple(map({**mine, **weights}.__getitem__, self._inputs))

    def _piece(self, name: str, tensor: Tensor, device: str) -> Tensor:
        """Returns a rank's piece of an input, on a device."""
        port, is_whole = self._given[name]
        mine = tensor.contiguous() if is_whole else take(tensor, port_box(port, {}))
        # A number goes along with a kernel from main memory, and fused steps take it from there.
        return mine if is_rate(port) else moved(mine, device)


def holds_all(port: Port) -> bool:
    """Returns whether a rank holds all of an input or output."""
    return all(sub.length == sub.size for dim in port.box for sub in dim)


def read_weights(
    program: Program,
    file: WeightFile,
    device: str,
    cache: dict[tuple[str, Box], Tensor] | None = None,
    absent: set[str] | None = None,
    names: Container[str] | None = None,
    written: Container[str] | None = None,
) -> dict[str, Tensor]:
    """Returns a rank's pieces of the weights by value name.

    Args:
        program: The rank's specialized program.
        file: The weights of all ranks.
        device: Where the pieces go, but for what waits in its host's memory.
        cache: Pieces read before, which ranks in one process share.
        absent: Gets the labels of parameters and buffers that the file lacks; their pieces have
            no values yet. Without it, such a file is refused.
        names: The values to read; by default all.
        written: The values that are going to be written, by default all. Others may share memory
            with all who read the same file (see `WeightFile.read`).

    Raises:
        InvalidInputError: If a weight is absent or of the wrong dtype or shape.
    """
    pieces: dict[str, Tensor] = {}
    cache = {} if cache is None else cache
    stored = [port for port in program.signature.inputs if is_weight(port)]
    there = hosted(program)
    if names is None:
        check_names(file.given, map(_names, stored))
    for port in stored:
        if not is_open_state(port) and (names is None or port.name in names):
            box = port_box(port, {})
            if (port.name, box) not in cache:
                shared = written is not None and port.name not in written
                where = "cpu" if port.name in there else device
                piece = _read_weight(port, file, box, where, absent, shared)
                cache[port.name, box] = piece if where == device else pinned(piece)
            pieces[port.name] = cache[port.name, box]
    return pieces


def _read_weight(
    port: Port,
    file: WeightFile,
    box: Box,
    device: str,
    absent: set[str] | None,
    shared: bool,
) -> Tensor:
    dtype = TORCH_DTYPES[port.dtype]
    own, *_ = names = _names(port)
    shape = port.part.shape if port.part else port.known_shape
    name = next((each for each in names if each in file.entries), None)
    if port.fill is not None and name is None:
        return torch.full(box_shape(box), port.fill, dtype=dtype, device=device)
    if absent is not None and name is None and port.role in GIVEN_LATER:
        absent.add(port.user_label)
        return torch.empty(box_shape(box), dtype=dtype, device=device)
    return file.read(name or own, dtype, shape, box, device, region_of(port), shared)


def _names(port: Port) -> tuple[str, ...]:
    """Returns the names under which a file may have a stored input, the value's first."""
    return (port.part.of if port.part else port.name, port.label, *port.aliases)


def region_of(port: Port) -> Region | None:
    """Returns where a port lies within a larger tensor."""
    if port.part is None:
        return None
    return tuple(zip(port.part.start, port.known_shape, strict=True))


def check_present(absent: Collection[str]) -> None:
    """Refuses to go on while parameters or buffers have no values.

    Args:
        absent: Their labels.

    Raises:
        InvalidInputError: If there are any. Names some.
    """
    if not absent:
        return
    some = sorted(absent)[:SHOWN]
    more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
    raise InvalidInputError(
        f"the build has no values of {', '.join(map(repr, some))}{more}: the model was on the meta"
        " device when it was compiled, or a checkpoint couldn't be loaded; give autopar.load a"
        " safetensors file with weights=, or init=lambda: Model(...), which draws them as the"
        " model's constructor does, or load a state dict or a checkpoint"
    )


def labelled(ports: Sequence[Port], tensors: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """Returns global tensors by label, the parts of one put together.

    Args:
        ports: All inputs, or all outputs.
        tensors: Tensors of some of them, by position.
    """
    found: dict[str, Tensor] = {}
    for at, tensor in tensors.items():
        port = ports[at]
        if port.part is None:
            found[port.user_label] = tensor
            continue
        whole = found.setdefault(port.user_label, tensor.new_empty(port.part.shape))
        narrowed(whole, region_of(port)).copy_(tensor)
    return found


def _tensor(array: Any, port: Port) -> Tensor:
    """Returns what a user gives as a tensor; a number has the dtype that is expected."""
    dtype = TORCH_DTYPES[port.dtype]
    if isinstance(array, float) and dtype.is_floating_point:
        return torch.tensor(array, dtype=dtype)
    found = torch.as_tensor(array.copy() if _is_odd(array) else array)
    return found.to(dtype) if is_rate(port) and found.is_floating_point() else found


def _is_odd(array: Any) -> bool:
    """Returns whether torch can't go through an array, or warns as it may not write to it."""
    if not isinstance(array, np.ndarray):
        return False
    return not array.flags.writeable or min(array.strides, default=0) < 0


def _mismatch(label: str, port: Port, tensor: Tensor) -> Iterable[str]:
    found = IR_DTYPES.get(tensor.dtype, str(tensor.dtype))
    if (tuple(tensor.shape), found) != (port.shape, port.dtype):
        yield f"input {label!r} is {found}{list(tensor.shape)}, it must be {_expected(port)}"


def _no_tensor(label: str, port: Port, given: Any) -> str:
    what = f"an array of {given.dtype}" if isinstance(given, np.ndarray) else shown(given)
    leave_out = ", or left out" if default_of(port) is not None else ""
    return f"input {label!r} is no tensor: it is {what}, it must be {_expected(port)}{leave_out}"


def _expected(port: Port) -> str:
    return f"{port.dtype}{shape_str(port.shape)}"


def _listing(ports: Mapping[str, Port]) -> str:
    return f"; the inputs are {', '.join(ports) or 'none'}"
