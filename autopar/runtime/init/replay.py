"""Carries out a construction with as little in memory as there can be.

Draws keep their order, and all of them are made, also those whose numbers are overwritten. What
depends on them follows at once, so that each content is gone before the next one is drawn; what
depends on nothing waits until it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from autopar.base.errors import InvalidInputError
from autopar.runtime.init.construction import START, Construction, Instruction, View


def replay(
    construction: Construction, wanted: Iterable[str], place: Callable[[str, Tensor], None]
) -> None:
    """Computes tensors, and draws from torch's generator, as the constructor does.

    Args:
        construction: What is computed.
        wanted: Names of the tensors.
        place: Called with each name and its tensor, which is in memory only during the call.
    """
    names: dict[int, list[str]] = {}
    for name in wanted:
        names.setdefault(construction.tensors[name].content, []).append(name)
    instructions = construction.instructions
    draws = {at for at, each in enumerate(instructions) if each.draw is not None}
    order = _order(instructions, _needed(instructions, names, draws))
    run = _Replay(construction)
    last = _last_uses(instructions, order)
    for at in order:
        run.carry_out(instructions[at])
        for content in last.get(at, ()):
            for name in names.get(content, ()):
                place(name, run.tensor(construction.tensors[name]))
            run.forget(content)
    run.set_generator(torch.default_generator, construction.end)


def evaluate(
    instructions: Sequence[Instruction],
    sizes: Mapping[int, int],
    func: Any,
    args: Any,
    kwargs: Any,
) -> object:
    """Returns the result of an op at this point of a construction.

    Raises:
        InvalidInputError: If it depends on numbers that the construction draws.
    """
    roots = {each.content for each in tree_leaves((args, kwargs)) if isinstance(each, View)}
    needed = _needed(instructions, roots, set())
    if any(instructions[at].draw is not None for at in needed):
        raise InvalidInputError(
            f"init: the model's construction looks at numbers that it drew ({func}); what it does"
            " must not depend on them"
        )
    run = _Replay(Construction(tuple(instructions), sizes, {}, frozenset(), None))
    for at in sorted(needed):
        run.carry_out(instructions[at])
    with torch.no_grad():
        result: object = func(*run.tensors(args), **run.tensors(kwargs))
    return result


class _Replay:
    """The contents that are in memory during a replay."""

    def __init__(self, construction: Construction) -> None:
        self._sizes = construction.sizes
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._states: dict[int, Tensor] = {START: torch.default_generator.get_state()}
        starts = [each.draw.start for each in construction.instructions if each.draw is not None]
        self._restored = {each for each in (*starts, construction.end) if isinstance(each, int)}

    @torch.no_grad()
    def carry_out(self, instruction: Instruction) -> None:
        """Carries out an instruction whose operands are in memory."""
        if instruction.begun is not None:
            self._allocate(instruction.begun)
        if (draw := instruction.draw) is not None:
            self.set_generator(draw.generator, draw.start)
        before = torch.get_default_dtype()
        torch.set_default_dtype(instruction.default_dtype)
        try:
            args, kwargs = self.tensors(instruction.args), self.tensors(instruction.kwargs)
            results = tree_leaves(instruction.func(*args, **kwargs))
        finally:
            torch.set_default_dtype(before)
        if draw is not None and draw.position in self._restored:
            self._states[draw.position] = draw.generator.get_state()
        for at, view in instruction.made.items():
            self._keep(view, results[at])

    def set_generator(self, generator: torch.Generator, start: Tensor | int | None) -> None:
        """Sets a generator to a state, or to that of a position. See `Draw.start`."""
        if start is not None:
            generator.set_state(self._states[start] if isinstance(start, int) else start)

    def tensor(self, view: View) -> Tensor:
        """Returns a tensor, in the memory of its content."""
        tensor = torch.empty(0, dtype=view.dtype, device="cpu")
        storage = self._storages[view.content]
        tensor.set_(storage, view.offset, view.size, view.stride)
        return tensor.conj() if view.conjugated else tensor

    def tensors(self, call: Any) -> Any:
        """Returns arguments with tensors in place of views."""
        return tree_map_only(View, self.tensor, call)

    def forget(self, content: int) -> None:
        """Frees a content."""
        del self._storages[content]

    def _keep(self, view: View, result: Tensor) -> None:
        found = result.untyped_storage()
        geometry = (tuple(result.shape), result.stride(), int(result.storage_offset()))
        same = geometry == (view.size, view.stride, view.offset)
        if same and found.nbytes() == self._sizes[view.content]:
            self._storages[view.content] = found
            return
        # Fake tensors may lie otherwise than real ones.
        self._allocate(view.content)
        self.tensor(view).copy_(result)

    def _allocate(self, content: int) -> None:
        memory = torch.empty(self._sizes[content], dtype=torch.uint8, device="cpu")
        self._storages[content] = memory.untyped_storage()


def _needed(
    instructions: Sequence[Instruction], contents: Iterable[int], roots: set[int]
) -> set[int]:
    """Returns the instructions that write these contents, or what others need, and the roots."""
    alive = set(contents)
    needed = set()
    for at in reversed(range(len(instructions))):
        if at in roots or not alive.isdisjoint(instructions[at].writes):
            needed.add(at)
            alive |= instructions[at].reads
    return needed


def _order(instructions: Sequence[Instruction], needed: set[int]) -> list[int]:
    """Returns the needed instructions in the order in which they are carried out."""
    before = _dependencies(instructions, sorted(needed))
    after: dict[int, list[int]] = {at: [] for at in before}
    for at, earlier in before.items():
        for each in earlier:
            after[each].append(at)
    done: dict[int, None] = {}

    def waits(at: int) -> bool:
        return not before[at] and bool(after[at]) and instructions[at].draw is None

    def demand(at: int) -> None:
        for each in sorted(before[at] - done.keys()):
            done[each] = None
        done[at] = None

    def ready(at: int) -> bool:
        missing = (each for each in before[at] if each not in done)
        return at not in done and instructions[at].draw is None and all(map(waits, missing))

    for first in before:
        if first in done or waits(first):
            continue
        demand(first)
        following = list(_reversed_after(after, first))
        while following:
            at = following.pop()
            if ready(at):
                demand(at)
                following.extend(_reversed_after(after, at))
    return list(done)


def _reversed_after(after: Mapping[int, Sequence[int]], at: int) -> Iterator[int]:
    yield from sorted(after[at], reverse=True)


def _dependencies(instructions: Sequence[Instruction], order: Sequence[int]) -> dict[int, set[int]]:
    """Returns the earlier instructions that each has to wait for: they write what it reads, or
    read or write what it writes."""
    before: dict[int, set[int]] = {}
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    for at in order:
        each = instructions[at]
        found = {writer[content] for content in each.reads if content in writer}
        for content in each.writes:
            found |= readers.pop(content, set())
            writer[content] = at
        for content in each.reads - each.writes:
            readers.setdefault(content, set()).add(at)
        before[at] = found - {at}
    return before


def _last_uses(instructions: Sequence[Instruction], order: Sequence[int]) -> dict[int, list[int]]:
    """Returns the contents that each instruction is the last one to use."""
    last = {
        content: at
        for at in order
        for content in sorted(instructions[at].reads | instructions[at].writes)
    }
    found: dict[int, list[int]] = {}
    for content, at in last.items():
        found.setdefault(at, []).append(content)
    return found
