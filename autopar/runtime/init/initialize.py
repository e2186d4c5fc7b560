"""Initializes what ranks hold of a model as its constructor does, one tensor in memory at a time.

Every rank draws all random numbers, as one device does, and keeps its pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from autopar.base.arguments import CALLABLE, expect
from autopar.base.errors import InvalidInputError, near_misses
from autopar.ir.program import Port
from autopar.runtime.execute.ranks import Ranks, jointly
from autopar.runtime.failure.leaving import told
from autopar.runtime.init.construction import Construction, View
from autopar.runtime.ports.boxes import Box, fill, narrowed
from autopar.runtime.ports.ports import is_weight, port_box, region_of
from autopar.runtime.ports.rates import trains
from autopar.runtime.state.state import MODEL_ROLES, OPTIMIZER_ROLES

MakeModel = Callable[[], nn.Module]
"""A model's constructor, as `lambda: GPT(config)`."""


class _Held(NamedTuple):
    """What a rank of this process holds of a tensor."""

    port: Port
    box: Box
    piece: Tensor


def initialize(ranks: Ranks, make_model: MakeModel, absent: bool = False) -> None:
    """Gives the ranks' parameters and buffers the values that the constructor gives them.

    They are drawn from torch's generator, whose state all ranks take from rank 0. It is left as
    the constructor leaves it.

    Args:
        ranks: Who holds the pieces.
        make_model: The constructor.
        absent: Whether only what has no values yet is given any.

    Raises:
        InvalidInputError: On all ranks, if the constructor fails on one of them, it isn't that of
            the model that was compiled, it can't be carried out so, or it does other things on
            another rank. The state is what it was.
    """
    call = "initialize"
    jointly(ranks, call, lambda: expect(CALLABLE, make_model=make_model), absent=absent)
    before = torch.get_rng_state()
    with ranks.reported():
        start = ranks.messages(meeting=True).made_by_first(lambda: before.numpy().tobytes())
    torch.set_rng_state(torch.frombuffer(bytearray(start), dtype=torch.uint8))
    held = _held_by_name(ranks)
    try:
        construction = jointly(
            ranks,
            call,
            lambda: _construction(ranks, held, make_model),
            lambda found: {"init": found.brief},
        )
    except InvalidInputError:
        torch.set_rng_state(before)
        raise
    with ranks.reported():
        _carry_out(ranks, construction, held, absent)


def _construction(
    ranks: Ranks, held: Mapping[str, list[_Held]], make_model: MakeModel
) -> Construction:
    """Returns what a constructor does.

    Raises:
        InvalidInputError: If it fails, or makes another model than what the ranks hold.
    """
    # Fake tensors take long to import, and a training that goes on from a checkpoint needs none.
    from autopar.runtime.init.record import record

    try:
        construction = record(make_model)
    except InvalidInputError:
        raise
    except Exception as error:
        raise InvalidInputError(f"init raised {told(error)}") from error
    # A forward pass needs not store all of the model.
    whole = any(map(trains, ranks.programs.values()))
    _check(held, construction.tensors, construction.saved if whole else frozenset())
    return construction


def _carry_out(
    ranks: Ranks, construction: Construction, held: Mapping[str, list[_Held]], absent: bool
) -> None:
    from autopar.runtime.init.replay import replay

    wanted = held.keys() & construction.tensors.keys()
    if absent:
        wanted = {name for name in wanted if held[name][0].port.user_label in ranks.absent}

    def keep(name: str, whole: Tensor) -> None:
        for port, box, piece in held[name]:
            fill(piece, narrowed(whole, region_of(port)), box)
            ranks.absent.discard(port.user_label)

    replay(construction, wanted, keep)


def _held_by_name(ranks: Ranks) -> dict[str, list[_Held]]:
    """Returns what the ranks hold, by all names of each tensor of the model."""
    held: dict[str, list[_Held]] = {}
    for rank, program in ranks.programs.items():
        for port in program.signature.inputs:
            if is_weight(port) and port.role not in OPTIMIZER_ROLES:
                each = _Held(port, port_box(port, {}), ranks.stored[rank][port.name])
                for name in (port.user_label, *port.aliases):
                    held.setdefault(name, []).append(each)
    return held


def _check(
    held: Mapping[str, list[_Held]], tensors: Mapping[str, View], saved: frozenset[str]
) -> None:
    """Refuses a model that isn't the one that was compiled.

    Args:
        held: What the program holds by name.
        tensors: The model's tensors by name.
        saved: Names of tensors of the model that the program must have.
    """
    problems = [*_differences(held, tensors)]
    for name in sorted(saved - held.keys()):
        problems.append(f"{name!r} is surplus{near_misses(name, held)}")
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise InvalidInputError(f"init makes another model than the one compiled:\n{lines}")


def _differences(held: Mapping[str, list[_Held]], tensors: Mapping[str, View]) -> Iterator[str]:
    for name, pieces in held.items():
        port = pieces[0].port
        shape = port.part.shape if port.part else port.shape
        first = tensors.get(port.user_label)
        if name not in tensors:
            if port.role in MODEL_ROLES:
                yield f"{name!r} is missing{near_misses(name, tensors)}"
        elif tensors[name].size != shape:
            yield f"{name!r} is {list(tensors[name].size)}, it must be {list(shape)}"
        elif first is not None and tensors[name].content != first.content:
            yield f"{name!r} is another tensor than {port.user_label!r}; they were one"
