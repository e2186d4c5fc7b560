"""Annotation files: pins by name pattern, and plans, which pin all that was decided.

    mesh: dp=2,tp=4
    shard:
      encoder.*.weight: [-1, tp]
      tokens: [[dp, tp], null]
    activations:
      encoder.layers.*: recompute     # or save, or offload, until the backward pass
      encoder.layers.*.attention.out: save
    offload: [optimizer, embed.weight]   # what waits in the host's memory between uses
    chunks:
      lm_head: 8              # computed in 8 parts, one after another
      scores: [2, 4]          # in 4 parts along dimension 2

is a file with pins: per dimension -1 or null, an axis, or several. A plan holds more:

    strategy: none            # what presets do besides
    memory: 24GiB             # what a device may hold at once
    exact: true               # pins of weights say where within a dimension the split is
    apart: true               # fused weights of unequal parts are named by their parts
    shard:
      encoder.*.qkv: [(3)(12@tp)(64), -1]
      total: {layout: [-1], partial: {dp: sum}}
      pixels: {layout: [-1, tp], on: {pp: 0}}   # kept on this slice of the mesh alone
    ops:
      - of: [encoder.*.mm]    # ops by the names of their results
        split: {m: dp, k: tp} # the factors of their rule, and the axes that split them
        body: product         # the alternative body that computes them
        pending: {tp: [sum, 0]}   # a sum over tp passes from operand 0 on
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autopar.annotate.activation_pins import ActivationPin
from autopar.annotate.choices import OpPin
from autopar.annotate.chunk_pins import ChunkPin
from autopar.annotate.mesh import parse_mesh
from autopar.annotate.offload_pins import OffloadPin
from autopar.annotate.pins import Pin
from autopar.base.arguments import PATH, expect
from autopar.base.errors import AnnotationError, InvalidInputError, near_misses
from autopar.base.units import parse_limit
from autopar.base.yaml_tree import Node, read_yaml
from autopar.ir.fixed import Index
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Pending
from autopar.ir.text.layouts import Entry, parse_dims_mapping

KEYS = (
    "mesh",
    "strategy",
    "memory",
    "exact",
    "apart",
    "chunks",
    "shard",
    "activations",
    "offload",
    "ops",
)
_POSITION = re.compile(r"[0-9]{1,9}")
OP_KEYS = ("of", "split", "body", "pending")


@dataclass(frozen=True, slots=True)
class Annotations:
    """What an annotation file says.

    Attributes:
        pins: In the order of the file.
        mesh: The mesh, if the file names one.
        ops: Pins of ops.
        strategy: The presets, if the file names them.
        memory_bytes: What a device may hold at once, if the file says it.
        apart: Whether fused weights are named by their parts.
        activations: What becomes of activations until the backward pass.
        offload: What waits in the host's memory between uses; None if the file doesn't say it.
        chunks: What is computed in parts; None if the file doesn't say it.
    """

    pins: tuple[Pin, ...]
    mesh: ProcessMesh | None = None
    ops: tuple[OpPin, ...] = ()
    strategy: str | None = None
    memory_bytes: int | None = None
    apart: bool = False
    activations: tuple[ActivationPin, ...] = ()
    offload: tuple[OffloadPin, ...] | None = None
    chunks: tuple[ChunkPin, ...] | None = None


def load_annotations(path: str | Path) -> Annotations:
    """Reads an annotation file.

    Raises:
        InvalidInputError: If the file can't be read, is no YAML, or YAML that isn't supported.
        AnnotationError: If it holds something else, or an unfit entry.
    """
    expect(PATH, path=path)
    path = Path(path)
    return _File(path).read(read_yaml(path, "annotations"))


@dataclass(frozen=True)
class _File:
    """Reads the nodes of one file, each of which knows its line."""

    path: Path

    def read(self, root: Node | None) -> Annotations:
        found: dict[str, Node] = {}
        for key, node in self.items(root, str(self.path)):
            if key not in KEYS:
                raise AnnotationError(
                    f"{self.place(node)}: unknown key {key!r}{near_misses(key, KEYS)}; a file has"
                    f" {', '.join(KEYS)}"
                )
            found[key] = node
        mesh = self.mesh(found["mesh"]) if "mesh" in found else None
        exact = self.is_set(found, "exact")
        return Annotations(
            tuple(replace(pin, exact=exact) for pin in self.pins(found.get("shard"))),
            mesh,
            tuple(self.ops(found.get("ops"))),
            self.text(found["strategy"]) if "strategy" in found else None,
            self.memory_bytes(found["memory"]) if "memory" in found else None,
            self.is_set(found, "apart"),
            tuple(self.activations(found.get("activations"))),
            self.offload(found["offload"]) if "offload" in found else None,
            tuple(self.chunks(found["chunks"])) if "chunks" in found else None,
        )

    def pins(self, node: Node | None) -> Iterator[Pin]:
        for pattern, entries in self.items(node, self.place(node)):
            place = self.place(entries)
            if entries.kind != "mapping":
                yield Pin(pattern, self.entries(entries), place)
                continue
            fields = dict(self.items(entries, place))
            if "layout" not in fields or not fields.keys() <= {"layout", "partial", "on"}:
                expected = "{layout: [...], partial: {axis: sum}, on: {axis: index}}"
                raise AnnotationError(f"{place}: expected a list, or {expected}")
            partial = self.items(fields.get("partial"), place)
            monoids = tuple((axis, self.text(monoid)) for axis, monoid in partial)
            on = tuple(self.fixed(fields.get("on"), place))
            yield Pin(pattern, self.entries(fields["layout"]), place, monoids, on=on)

    def fixed(self, node: Node | None, place: str) -> Iterator[tuple[str, Index]]:
        for axis, where in self.items(node, place):
            found = self.text(where).split("+")
            if not all(map(_POSITION.fullmatch, found)):
                raise AnnotationError(
                    f"{place}: on must be {{axis: index}}, or several indices as 0+2"
                )
            indices = tuple(sorted(set(map(int, found))))
            yield axis, indices if len(indices) > 1 else indices[0]

    def activations(self, node: Node | None) -> Iterator[ActivationPin]:
        for pattern, choice in self.items(node, self.place(node)):
            yield ActivationPin.from_choice(pattern, self.text(choice), self.place(choice))

    def offload(self, node: Node) -> tuple[OffloadPin, ...]:
        return tuple(OffloadPin(self.text(item), self.place(item)) for item in self.listed(node))

    def chunks(self, node: Node) -> Iterator[ChunkPin]:
        for pattern, entry in self.items(node, self.place(node)):
            words = self.listed(entry) if entry.kind == "list" else [entry]
            found = [self.text(word) for word in words]
            place = self.place(entry)
            if not 1 <= len(found) <= 2 or not all(map(_POSITION.fullmatch, found)):
                raise AnnotationError(f"{place}: expected a number of parts, as 8, or [dim, parts]")
            *dim, parts = map(int, found)
            if not parts:
                raise AnnotationError(f"{place}: {pattern!r} is in 0 parts; write at least 1")
            yield ChunkPin(pattern, parts, dim[0] if dim else None, place)

    def ops(self, node: Node | None) -> Iterator[OpPin]:
        for item in self.listed(node):
            place = self.place(item)
            fields = dict(self.items(item, place))
            for key in fields:
                if key not in OP_KEYS:
                    hint = near_misses(key, OP_KEYS)
                    raise AnnotationError(
                        f"{place}: unknown key {key!r}{hint}; an op has {', '.join(OP_KEYS)}"
                    )
            if "of" not in fields or "split" not in fields:
                raise AnnotationError(f"{place}: an op needs 'of', the names, and 'split'")
            split = tuple(
                (factor, self.entry(axes)) for factor, axes in self.items(fields["split"], place)
            )
            body = self.text(fields["body"]) if "body" in fields else ""
            pending = tuple(self.pending(fields.get("pending"), place))
            for name in self.listed(fields["of"]):
                yield OpPin(self.text(name), split, body, pending, place)

    def pending(self, node: Node | None, place: str) -> Iterator[Pending]:
        for axis, entry in self.items(node, place):
            monoid, *operands = [self.text(item) for item in self.listed(entry)] or [""]
            if not operands or not all(map(_POSITION.fullmatch, operands)):
                raise AnnotationError(
                    f"{place}: pending must be {{axis: [sum, 0, 1]}}: the reduction, and the"
                    " positions of the operands that it passes from"
                )
            yield Pending(axis, monoid, tuple(map(int, operands)))

    def is_set(self, found: Mapping[str, Node], key: str) -> bool:
        return key in found and self.text(found[key]) == "true"

    def mesh(self, node: Node) -> ProcessMesh:
        if node.kind != "word":
            raise AnnotationError(f"{self.place(node)}: mesh: write 2x4 or dp=2,tp=4")
        try:
            return parse_mesh(self.text(node))
        except AnnotationError as error:
            raise AnnotationError(f"{self.place(node)}: {error}") from error

    def memory_bytes(self, node: Node) -> int:
        try:
            return parse_limit(self.text(node))
        except InvalidInputError as error:
            raise AnnotationError(f"{self.place(node)}: {error}") from error

    def items(self, node: Node | None, place: str) -> list[tuple[str, Node]]:
        if node is None or node.is_null:
            return []
        if node.kind != "mapping":
            raise AnnotationError(f"{place}: expected a mapping of names")
        return [(key.text, value) for key, value in node.pairs]

    def listed(self, node: Node | None) -> list[Node]:
        if node is None:
            return []
        if node.kind != "list":
            raise AnnotationError(f"{self.place(node)}: expected a list")
        return node.items

    def text(self, node: Node) -> str:
        if node.kind != "word":
            raise AnnotationError(f"{self.place(node)}: expected a single word")
        return node.text

    def entry(self, node: Node) -> Entry:
        """Returns one entry of a dims_mapping, as of a factor."""
        found = self.parsed(node, f"[{_text_of(node)}]") if node.kind != "mapping" else ()
        if len(found) != 1:
            raise AnnotationError(
                f"{self.place(node)}: expected one entry: -1, an axis, or several as [dp, tp]"
            )
        return found[0]

    def entries(self, node: Node) -> tuple[Entry, ...]:
        # YAML cuts "[(dp,tp), -1]" at every comma, so entries are put together again as text.
        if node.kind == "mapping":
            raise AnnotationError(
                f"{self.place(node)}: expected a list with one entry per dimension, as [-1, tp]"
            )
        return self.parsed(node, _text_of(node, "[]") if node.kind == "list" else node.text)

    def parsed(self, node: Node, text: str) -> tuple[Entry, ...]:
        try:
            return parse_dims_mapping(text)
        except AnnotationError as error:
            raise AnnotationError(f"{self.place(node)}: {error}") from error

    def place(self, node: Node | None) -> str:
        return f"{self.path}:{node.line}" if node is not None else str(self.path)


def _text_of(node: Node, brackets: str = "()") -> str:
    if node.kind != "list":
        return "None" if node.is_null else node.text
    inner = ", ".join(_text_of(item) for item in node.items)
    return f"{brackets[0]}{inner}{brackets[1]}"
