"""Marked and pinned models, compiled: what the user said holds, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

import autopar
from autopar.annotate import (
    MeshLike,
    ProcessMesh,
    apply_mesh,
    as_mesh,
    pipeline_stage,
    shard,
    shard_op,
)
from autopar.base.errors import AnnotationError
from autopar.compiled import CompiledModel
from autopar.ir.mark import Mark
from autopar.ir.text.layouts import Entry
from autopar.runtime.training.opening import open_trainer

MESH = ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"])


class Block(nn.Module):
    """A block with its layouts written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.lower = shard_op(self.down, MESH, {"input": [0, 1]})

    def forward(self, x: Tensor) -> Tensor:
        x = shard(x, None, ["dp", None])
        weight = shard(self.up.weight, MESH, ["tp", None])
        h = F.gelu(F.linear(x, weight, self.up.bias))
        out: Tensor = shard(x + self.lower(h), None, ["dp", -1])
        return out


class Net(nn.Module):
    """Blocks around a table that is tied to the head."""

    def __init__(self, marked: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, 8)
        block = Block if marked else lambda: nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.table(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 12, (8,), generator=generator), torch.arange(8)


def compiled(
    model: nn.Module, shards: dict[str, Sequence[Entry]] | None = None, accumulate: int = 1
) -> CompiledModel:
    return autopar.compile(
        model,
        batch(0),
        mesh=MESH,
        loss=F.cross_entropy,
        optimizer=torch.optim.AdamW(model.parameters(), 0.01),
        strategy=None,
        shard=shards,
        accumulate=accumulate,
    )


def layouts(module: CompiledModel) -> dict[str, str]:
    return {name: str(value.dist) for name, value in module.serial.main.values.items()}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_marked_model_trains_as_on_one_device(tmp_path: Path, accumulate: int) -> None:
    model = Net(marked=True)
    done = compiled(model, accumulate=accumulate)
    done.save(tmp_path / "build")
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    with open_trainer(tmp_path / "build", virtual=True) as trainer:
        for number in range(3):
            ids, labels = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids), labels)
            loss.backward()
            optimizer.step()
            assert trainer.step((ids, labels)).item() == pytest.approx(loss.item(), rel=1e-5)
    stored = layouts(done)
    for block in (0, 1):
        assert stored[f"blocks.{block}.up.weight"] == "[16@tp, 8]"
        assert stored[f"exp_avg/blocks.{block}.up.weight"] == "[16@tp, 8]"


def test_each_block_is_pinned_and_its_gradient_too() -> None:
    serial = compiled(Net(marked=True)).source
    pinned = [value for value in serial.main.values.values() if value.dist is not None]
    places = [value.origin.detail for value in pinned if value.origin]
    assert all(place.startswith(f"{__file__}:") for place in places)
    parameters = [value.name for value in pinned if value.role == "parameter"]
    assert parameters == ["blocks.0.up.weight", "blocks.1.up.weight"]
    # Of two blocks: their input and output (one value in between), and what is hidden.
    forward = [place for place in places if not place.endswith("(gradient)")]
    assert len(forward) - len(parameters) == 5
    assert len(places) - len(forward) == 5


def test_patterns_are_names_of_the_state_dict() -> None:
    names = layouts(compiled(Net(), {"blocks.*.0.weight": ["tp", None], "table.*": [None, "tp"]}))
    assert names["blocks.0.0.weight"] == names["blocks.1.0.weight"] == "[16@tp, 8]"
    assert names["table.weight"] == "[12, 8@tp]"


def test_a_tied_parameter_has_all_its_names() -> None:
    assert layouts(compiled(Net(), {"head.weight": ["tp", None]}))["table.weight"] == "[12@tp, 8]"


def test_what_belongs_to_a_parameter_follows_it_unless_it_is_pinned_itself() -> None:
    weight = "blocks.0.0.weight"
    names = layouts(compiled(Net(), {"*.weight": ["tp", None]}))
    for name in (weight, f"{weight}.new", f"exp_avg/{weight}", f"exp_avg_sq/{weight}.new"):
        assert names[name] == "[16@tp, 8]"
    assert names[f"step/{weight}"] == "[]"
    names = layouts(compiled(Net(), {"*.weight": [None, None], "*/blocks.*.weight": ["dp", None]}))
    assert (names[weight], names[f"exp_avg/{weight}"]) == ("[16, 8]", "[16@dp, 8]")
    assert names[f"grad/{weight}"] == "[16@dp, 8]"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("blocks.0.0.wieght", "did you mean blocks.0.0.weight"),
        ("hed.weight", "did you mean head.weight"),
        ("exp_av/blocks.0.0.weight", "did you mean exp_avg/blocks.0.0.weight"),
        ("model.blocks.*", "did you mean blocks.0.0"),
    ],
)
def test_a_pattern_without_a_match_shows_what_is_near(pattern: str, message: str) -> None:
    with pytest.raises(AnnotationError, match="matches no input, parameter") as error:
        compiled(Net(), {pattern: ["tp", None]})
    assert message in str(error.value)


def test_a_mark_and_a_pattern_must_agree() -> None:
    with pytest.raises(AnnotationError) as error:
        compiled(Net(marked=True), {"blocks.1.up.weight": [None, "tp"]})
    line = Block.forward.__code__.co_firstlineno + 2
    assert f"two pins disagree about %blocks.1.up.weight: [16@tp, 8] by {__file__}:{line}" in str(
        error.value
    )


def test_statements_and_hooks_mark_too() -> None:
    class Stating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 12)
            self.layer.register_forward_hook(lambda _, args, out: shard(out, None, ["dp", None]))

        def forward(self, ids: Tensor) -> Tensor:
            x = F.one_hot(ids, 8) * 1.0
            shard(x, None, ["dp", "tp"])
            shard(self.layer.weight, None, [None, "tp"])
            return self.layer(x)

    values = compiled(Stating()).source.main.values.values()
    pinned = [value for value in values if value.dist is not None]
    assert [str(value.dist) for value in pinned] == [
        "[12, 8@tp]",
        "[8@dp, 8@tp]",
        "[8@dp, 12]",
        "[8@dp, 12]",
    ]
    assert all(str(value.origin).startswith(f"annotated: {__file__}:") for value in pinned)


class Wrong(nn.Module):
    """A model around a function that marks."""

    def __init__(self, *, stage: int = 0, mesh: MeshLike | None = None, rank: int = 2) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 12)
        self.stage = stage
        self.mesh = mesh
        self.rank = rank

    def forward(self, ids: Tensor) -> Tensor:
        x = F.one_hot(ids, 8) * 1.0
        with pipeline_stage(self.stage):
            x = self.layer(x)
        return shard(x, self.mesh, [None] * self.rank)


@pytest.mark.parametrize(
    ("model", "offset", "message"),
    [
        (Wrong(stage=1), 3, r"forward: pipeline_stage\(1\)"),
        (Wrong(mesh=ProcessMesh([0, 3], parent=MESH)), 4, "which are no slice of"),
        (Wrong(mesh=ProcessMesh([[0, 1, 2, 3]], ["dp", "tp"])), 4, "use one mesh for both"),
        (Wrong(rank=3), 4, "has 3 entries, but the tensor has 2 dimensions"),
    ],
)
def test_what_can_not_be_compiled_names_the_users_line(
    model: nn.Module, offset: int, message: str
) -> None:
    line = Wrong.forward.__code__.co_firstlineno + offset
    with pytest.raises(AnnotationError, match=f"{__file__}:{line}: .*{message}"):
        compiled(model)


def test_the_backward_pass_of_a_stage_is_in_the_stage() -> None:
    from autopar.frontend.torch import Recipe, capture

    model = Wrong(stage=1)
    recipe = Recipe(F.cross_entropy, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    main = capture(model, batch(0), recipe, MESH).program.main
    products = {
        (op.phase, op.stage) for op in main.ops if op.kind.startswith(("aten.mm", "aten.addmm"))
    }
    assert products == {("forward", 1), ("backward", 1)}


@pytest.fixture
def device_mesh() -> Iterator[DeviceMesh]:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    distributed.destroy_process_group()


def test_a_device_mesh_is_a_mesh(device_mesh: DeviceMesh) -> None:
    assert as_mesh(device_mesh) == MESH
    program = apply_mesh(compiled(Net()).source, device_mesh)
    assert program.mesh == MESH


@pytest.mark.parametrize("strict", [False, True])
def test_a_device_mesh_marks(device_mesh: DeviceMesh, strict: bool) -> None:
    class Marked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return shard(x, device_mesh, ["dp", None])

    x = torch.ones(2, 2)
    assert Marked()(x) is x
    graph = torch.export.export(Marked(), (x,), strict=strict).graph
    (mark,) = [n for n in graph.nodes if n.target is torch.ops.autopar.shard.default]
    assert Mark.parse(mark.args[1]).mesh == MESH


def test_a_model_is_compiled_for_a_device_mesh(device_mesh: DeviceMesh) -> None:
    model = Wrong(mesh=device_mesh)
    done = autopar.compile(model, batch(0)[0], mesh=device_mesh)
    assert done.serial.mesh == MESH


@pytest.mark.parametrize(
    ("given", "shape"), [(1, (1,)), (4, (4,)), ((2, 4), (2, 4)), ((3, 1, 2), (3, 1, 2))]
)
def test_sizes_are_a_mesh(given: int | tuple[int, ...], shape: tuple[int, ...]) -> None:
    """As torch's init_device_mesh has them; the axes are named by their place."""
    assert as_mesh(given) == ProcessMesh.of_shape(shape)
    model = nn.Linear(4, 4)
    compiled = autopar.compile(model, torch.randn(8, 4), mesh=given)
    assert compiled.serial.mesh == ProcessMesh.of_shape(shape)
    assert autopar.annotate.shard(torch.ones(4), given, [-1]).shape == (4,)


@pytest.mark.parametrize(("given", "why"), [(0, "0 processes"), ((2, -1), "'-1' is not a number")])
def test_sizes_below_one_are_no_mesh(given: int | tuple[int, ...], why: str) -> None:
    with pytest.raises(AnnotationError, match=why):
        as_mesh(given)


@pytest.mark.parametrize("mesh", [[[0, 1]], [2, 4], (2, "4"), (), True, 4.0, None])
def test_other_things_are_no_mesh(mesh: object) -> None:
    """Among them lists, which in a ProcessMesh are the ids of processes and not sizes."""
    with pytest.raises(AnnotationError, match=r"give a ProcessMesh.*a number of processes"):
        as_mesh(mesh)  # type: ignore[arg-type]
