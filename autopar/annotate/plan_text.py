"""Plans as text: layouts and choices by name, as an annotation file that people read and edit.

What is the same in repeated layers is said once: names that differ in a number alone become a
pattern, if nothing else fits it.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autopar.annotate.chunk_pins import ChunkPin
from autopar.base.units import human_bytes
from autopar.ir.dims import DimLayout, dim_axes
from autopar.ir.fixed import Fixed, index_text
from autopar.ir.layout import Layout
from autopar.ir.memory.transfers import EITHER
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import OpDist
from autopar.ir.text.layouts import dims_mapping_text, entry_text

WIDTH = 100

_NUMBER = re.compile(r"(?<![A-Za-z])\d+")
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*(?:\*[\w./*-]*)?")


@dataclass(frozen=True)
class PinnedValue:
    """A value of a plan.

    Attributes:
        name: Its name.
        layout: Its layout.
        reason: Why it lies so.
        is_placed: Whether it is kept on the layout's part of the mesh wherever it is read.
    """

    name: str
    layout: Layout
    reason: str
    is_placed: bool = False


@dataclass(frozen=True)
class PinnedOp:
    """An op of a plan.

    Attributes:
        name: The name of its first result.
        dist: How it is computed.
        what: Its kind and source, and why it is computed so.
    """

    name: str
    dist: OpDist
    what: str


@dataclass(frozen=True, slots=True)
class PinnedActivations:
    """What a user wants of activations.

    Attributes:
        name: That of a value, or of a module.
        choice: `save`, `recompute` or `offload`.
        is_module: Whether it is a module, all of whose activations are meant.
    """

    name: str
    choice: str
    is_module: bool


def plan_text(
    mesh: ProcessMesh,
    title: str,
    values: Sequence[PinnedValue],
    ops: Sequence[PinnedOp],
    names: Iterable[str],
    memory_bytes: int | None = None,
    *,
    apart: bool = False,
    activations: Sequence[PinnedActivations] = (),
    offload: Sequence[str] = (),
    chunks: Sequence[ChunkPin] | None = None,
    update: str = EITHER,
) -> str:
    """Returns a plan as the YAML that `load_annotations` reads.

    Args:
        mesh: The processes.
        title: The first comment, of a line or more.
        values: The values it pins.
        ops: The ops it pins.
        names: The names of all values of the program, to tell what a pattern fits.
        memory_bytes: What a device may hold at once; None for any number.
        apart: Whether it names fused weights by their parts.
        activations: What the user wants of activations.
        offload: The labels of what waits in the host's memory between uses.
        chunks: What is computed in parts; None where nothing says so, nor a limit of memory.
        update: Who updates that.
    """
    known = Names(names)
    sizes = ",".join(f"{axis}={size}" for axis, size in mesh.axis_sizes().items())
    lines = [f"# {line}" for line in title.splitlines()]
    lines += [f"mesh: {sizes}", "strategy: none"]
    if memory_bytes is not None:
        lines.append(f"memory: {memory_bytes}B  # {human_bytes(memory_bytes)}")
    lines += ["exact: true", *(["apart: true"] if apart else [])]
    if chunks is not None:
        lines += ["", *_chunk_lines(chunks)]
    lines += ["", "shard:"]
    lines += _value_lines(values, known)
    if activations:
        lines += ["", "activations:", *_activation_lines(activations, known)]
    if offload:
        lines += ["", *_listed("offload: ", offload)]
        lines += [f"update: {update}"] if update != EITHER else []
    if ops:
        lines += ["", "ops:", *_op_lines(ops, known)]
    return "\n".join(lines) + "\n"


class Names:
    """The names of a program's values, and which patterns fit which of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self.all = tuple(dict.fromkeys(names))

    def patterns(self, names: Sequence[str]) -> list[str]:
        """Returns patterns that fit these names and no other, fewer than names where possible."""
        rest, found = dict.fromkeys(names), []
        wanted = set(names)
        for template in (_all_numbers, _first_number):
            groups: dict[str, list[str]] = {}
            for name in rest:
                groups.setdefault(template(name), []).append(name)
            for pattern, members in groups.items():
                if len(members) > 1 and wanted.issuperset(self.fitting(pattern)):
                    found.append((members[0], pattern))
                    rest = dict.fromkeys(name for name in rest if name not in members)
        found += [(name, glob.escape(name)) for name in rest]
        order = {name: at for at, name in enumerate(names)}
        return [pattern for _, pattern in sorted(found, key=lambda pair: order[pair[0]])]

    def modules(self, dots: int) -> Names:
        """Returns the names of modules with as many dots in them."""
        split = (name.split(".") for name in self.all)
        return Names(".".join(parts[: dots + 1]) for parts in split if len(parts) > dots + 1)

    def fitting(self, pattern: str) -> list[str]:
        """Returns the names that a pattern fits."""
        fits = re.compile(fnmatch.translate(pattern)).match
        prefix = pattern[: pattern.index("*")] if "*" in pattern else pattern
        return [name for name in self.all if name.startswith(prefix) and fits(name)]


def _all_numbers(name: str) -> str:
    return _NUMBER.sub("*", name) if glob.escape(name) == name else name


def _first_number(name: str) -> str:
    return _NUMBER.sub("*", name, count=1) if glob.escape(name) == name else name


def _value_lines(values: Sequence[PinnedValue], known: Names) -> Iterator[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for value in values:
        groups.setdefault((_layout_of(value), value.reason), []).append(value.name)
    rows = [
        (pattern, text, reason)
        for (text, reason), names in groups.items()
        for pattern in known.patterns(names)
    ]
    reason_before = None
    for pattern, text, reason in rows:
        if reason != reason_before:
            yield f"  # {reason}"
        reason_before = reason
        yield f"  {_word(pattern)}: {text}"


def _op_lines(ops: Sequence[PinnedOp], known: Names) -> Iterator[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for op in ops:
        groups.setdefault((op.what, choice_text(op.dist)), []).append(op.name)
    for (what, choice), names in groups.items():
        yield f"  # {what}"
        yield from _listed("  - of: ", known.patterns(names))
        yield f"    {choice}"


def _activation_lines(pins: Sequence[PinnedActivations], known: Names) -> Iterator[str]:
    """Yields modules before values, since the last pin counts."""
    for is_module in (True, False):
        groups: dict[tuple[str, int], list[str]] = {}
        for pin in pins:
            if pin.is_module == is_module:
                groups.setdefault((pin.choice, pin.name.count(".")), []).append(pin.name)
        for (choice, dots), names in groups.items():
            for pattern in (known.modules(dots) if is_module else known).patterns(names):
                yield f"  {_word(pattern)}: {choice}"


def _chunk_lines(chunks: Sequence[ChunkPin]) -> Iterator[str]:
    yield "chunks:" if chunks else "chunks: {}"
    for pin in chunks:
        entry = str(pin.parts) if pin.dim is None else f"[{pin.dim}, {pin.parts}]"
        yield f"  {_word(pin.pattern)}: {entry}"


def _listed(head: str, patterns: Sequence[str]) -> Iterator[str]:
    """Yields a list of names, in as many lines as it takes."""
    line = f"{head}["
    for at, pattern in enumerate(patterns):
        word = _word(pattern) + ("]" if at == len(patterns) - 1 else ",")
        if at and len(line) + len(word) + 1 > WIDTH:
            yield line
            line = " " * len(head)
        line += word if line.endswith(("[", "  ")) else f" {word}"
    yield line


def _layout_of(value: PinnedValue) -> str:
    return layout_text(value.layout, value.layout.mesh.fixed if value.is_placed else ())


def layout_text(layout: Layout, on: Fixed = ()) -> str:
    """Returns a layout as an entry of an annotation file: `[-1, tp]`.

    Args:
        layout: The layout.
        on: The part of the mesh that the entry names.
    """
    dims = dims_mapping_text(layout.dims)
    fields = [f"layout: {dims}"]
    if layout.partial:
        fields.append(f"partial: {{{_pairs(layout.partial)}}}")
    if on:
        fields.append(f"on: {{{_pairs((axis, index_text(index)) for axis, index in on)}}}")
    return f"{{{', '.join(fields)}}}" if fields[1:] else dims


def choice_text(dist: OpDist) -> str:
    """Returns a choice as the fields of an op in a plan."""
    split = _pairs((name, _factor(dim)) for name, dim in dist.factors if dim_axes(dim))
    lines = [f"split: {{{split}}}"]
    if dist.body:
        lines.append(f"body: {_word(dist.body)}")
    if dist.pending:
        pending: Mapping[str, str] = {
            each.axis: f"[{', '.join([each.monoid, *map(str, each.operands)])}]"
            for each in dist.pending
        }
        lines.append(f"pending: {{{_pairs(pending.items())}}}")
    return "\n    ".join(lines)


def _pairs(items: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{_word(name)}: {text}" for name, text in items)


def _factor(dim: DimLayout) -> str:
    text = entry_text(dim)
    # Within braces YAML cuts bare text at a comma: "(7)(8@(dp,tp))".
    return json.dumps(text) if len(dim) > 1 and "," in text else text


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
