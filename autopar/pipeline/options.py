"""What a user decides about a compilation, as Python callers and command lines say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autopar.annotate import (
    ActivationPin,
    MeshLike,
    OpPin,
    Pin,
    as_mesh,
    load_annotations,
    parse_activation,
    parse_mesh,
    parse_pin,
)
from autopar.annotate.mapping_text import Entry
from autopar.completion.presets.strategy import AUTO, parse_strategy
from autopar.cost import Cluster
from autopar.ir.errors import AnnotationError, InvalidInputError
from autopar.ir.mesh import ProcessMesh
from autopar.ir.units import parse_limit
from autopar.mapping import Placement, parse_placement
from autopar.mapping.placement import given

NO_PRESETS = "none"
"""As a strategy in text: nothing but the user's pins."""


@dataclass(frozen=True)
class CompileOptions:
    """What a user decides about a compilation.

    Attributes:
        mesh: The logical processes to compile for.
        cluster: The hardware whose costs guide the decisions.
        strategy: `auto` to search, presets as `data:0,tensor:1`, or None for neither.
        pins: The user's pins.
        placement: Which logical process each rank carries out.
        verify: Whether to verify the program between passes.
        phases_apart: Whether the forward pass must not wait for anything of the backward pass.
        memory_bytes: What a device may hold at once; None for any number.
        seconds_limit: Wall time of a search, after which it takes the best plan so far.
        op_pins: The user's pins of ops.
        apart: Whether pins name fused weights of unequal parts by their parts.
        activations: What becomes of activations until the backward pass, where the user says it.
    """

    mesh: ProcessMesh
    cluster: Cluster
    strategy: str | None = AUTO
    pins: tuple[Pin, ...] = ()
    placement: Placement = "identity"
    verify: bool = True
    phases_apart: bool = False
    memory_bytes: int | None = None
    seconds_limit: float | None = None
    op_pins: tuple[OpPin, ...] = ()
    apart: bool = False
    activations: tuple[ActivationPin, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        mesh: MeshLike | None = None,
        devices: int | None = None,
        strategy: str | None = "",
        shard: Mapping[str, Sequence[Entry]] | None = None,
        cluster: str | Cluster = "cpu",
        placement: Placement = "identity",
        memory: str | int | None = None,
        seconds_limit: float | None = None,
        plan: str | Path | None = None,
        activations: Mapping[str, str] | None = None,
    ) -> CompileOptions:
        """Returns the options as Python callers give them; see `compile_onnx`.

        Raises:
            AnnotationError, InvalidInputError: If an option can't be understood.
        """
        pins = tuple(Pin.of(pattern, mapping) for pattern, mapping in (shard or {}).items())
        options = cls(
            mesh=as_mesh(given_mesh(mesh, devices)),
            cluster=Cluster.load(cluster) if isinstance(cluster, str) else cluster,
            strategy=None if strategy == NO_PRESETS else strategy,
            pins=pins,
            placement=placement,
            memory_bytes=None if memory is None else parse_limit(memory),
            activations=tuple(ActivationPin.of(*each) for each in (activations or {}).items()),
            seconds_limit=_time(seconds_limit),
        )
        return options._with(None if plan is None else Path(plan), is_searched=mesh is None)

    @classmethod
    def from_text(
        cls,
        *,
        mesh: str,
        cluster: str = "cpu",
        strategy: str = "",
        shards: Sequence[str] = (),
        annotations: Path | None = None,
        placement: str = "identity",
        memory: str | None = None,
        time_limit: float | None = None,
        verify: bool = True,
        activations: Sequence[str] = (),
        is_searched: bool = False,
    ) -> CompileOptions:
        """Returns the options that a command line spells out.

        The strategy may also be `none`: only the pins. A mesh whose shape is still searched says
        how many processes there are.

        Raises:
            AnnotationError, InvalidInputError: If an option can't be understood.
        """
        parsed = parse_mesh(mesh)
        pins = [parse_pin(text, f"--shard '{text}'") for text in shards]
        if strategy not in ("", NO_PRESETS, AUTO) and not is_searched:
            parse_strategy(strategy, parsed)
        placed = parse_placement(placement)
        options = cls(
            mesh=parsed,
            cluster=Cluster.load(cluster),
            strategy=None if strategy == NO_PRESETS else strategy,
            pins=tuple(pins),
            placement=given(parsed, placed) if isinstance(placed, tuple) else placed,
            memory_bytes=None if memory is None else parse_limit(memory),
            seconds_limit=_time(time_limit),
            verify=verify,
            activations=tuple(map(parse_activation, activations)),
        )
        return options._with(annotations, is_searched)

    def _with(self, file: Path | None, is_searched: bool) -> CompileOptions:
        """Returns the options with a file's, if there is one, and a strategy if none was named.

        Raises:
            AnnotationError, InvalidInputError: If the file can't be used, or something is for a
                certain mesh while the shape of the mesh is searched.
        """
        options = self if file is None else self._with_file(file, is_searched)
        place = "" if self.strategy == options.strategy else f"{file}: "
        if is_searched and (found := options._for_a_mesh(place)):
            raise InvalidInputError(
                f"{found}, so the shape of the mesh isn't searched; give the mesh in the place of"
                " a number of devices"
            )
        return replace(options, strategy=AUTO) if options.strategy == "" else options

    def _for_a_mesh(self, place: str) -> str:
        """Returns what was given that is for a certain mesh, "" if nothing is.

        Args:
            place: Where the strategy stands, to begin with.
        """
        if self.strategy not in ("", AUTO):
            return f"{place}strategy {self.strategy or NO_PRESETS!r} is for a certain mesh"
        places = [*(pin.place for pin in self.pins), *(pin.place for pin in self.op_pins)]
        return f"{places[0]}: a pin names axes of a certain mesh" if places else ""

    def _with_file(self, path: Path, is_searched: bool) -> CompileOptions:
        """Returns the options with what an annotation file or a plan says besides.

        Raises:
            AnnotationError, InvalidInputError: If it can't be read, or is for another mesh.
        """
        loaded = load_annotations(path)
        if loaded.mesh is not None and is_searched:
            raise AnnotationError(
                f"{path} is for {loaded.mesh}, so the shape of the mesh isn't searched; give this"
                " mesh in the place of a number of devices"
            )
        if loaded.mesh is not None and loaded.mesh != self.mesh:
            raise AnnotationError(
                f"{path} is for {loaded.mesh}, but --mesh says {self.mesh}; make them equal"
            )
        memory_bytes = loaded.memory_bytes if self.memory_bytes is None else self.memory_bytes
        strategy = self.strategy
        if strategy == "" and loaded.strategy is not None:
            strategy = None if loaded.strategy == NO_PRESETS else loaded.strategy
        return replace(
            self,
            strategy=strategy,
            memory_bytes=memory_bytes,
            pins=(*self.pins, *loaded.pins),
            op_pins=(*self.op_pins, *loaded.ops),
            apart=self.apart or loaded.apart,
            activations=(*loaded.activations, *self.activations),
        )


def given_mesh(
    mesh: MeshLike | None,
    devices: int | None,
) -> MeshLike:
    """Returns the mesh, or one axis of so many devices to begin the search of a shape with.

    Raises:
        InvalidInputError: If there is neither or both.
    """
    if (mesh is None) == (devices is None):
        raise InvalidInputError("give mesh=, or devices= to search the shape of a mesh")
    if mesh is not None:
        return mesh
    assert devices is not None
    if devices < 1:
        raise InvalidInputError(f"devices={devices}: a mesh needs at least one")
    return str(devices)


def _time(seconds: float | None) -> float | None:
    """Returns a limit of time.

    Raises:
        InvalidInputError: If it is below 0, or no number.
    """
    if seconds is not None and not seconds >= 0:
        raise InvalidInputError(f"seconds_limit {seconds}: a search takes no less than 0 seconds")
    return seconds
