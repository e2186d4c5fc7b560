"""Plans: what is compiled from one is what it was written from, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar import annotate
from autopar.annotate import ProcessMesh, load_annotations
from autopar.annotate.plan_text import PinnedOp, plan_text
from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.base.units import human_bytes
from autopar.compiled import CompiledModel
from autopar.cost import memory_timeline
from autopar.ir.builds.files import read_build
from autopar.ir.dims import DimLayout, SubDim
from autopar.ir.program import OpDist
from autopar.ir.serde import program_to_bytes
from autopar.ir.text.layouts import Entry
from autopar.partition.recompute import DoesNotFit
from tests.cli import command
from tests.project.walks import ROOT


class Block(nn.Module):
    """A transformer block with a fused projection."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, size))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Two blocks between a table and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 48)
        self.blocks = nn.Sequential(Block(48, 6), Block(48, 6))
        self.scores = nn.Linear(48, 64, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.scores(self.blocks(self.table(ids)))


def loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def compiled(rows: int = 8, **options: Any) -> CompiledModel:
    torch.manual_seed(0)
    model = Model()
    ids = torch.zeros(rows, 16, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return autopar.compile(model, (ids, ids), loss=loss, optimizer=optimizer, **options)


def programs(step: CompiledModel) -> list[bytes]:
    return [program_to_bytes(program) for program in step.deployment.programs]


@pytest.mark.parametrize(
    ("dim", "entry"),
    [
        ((SubDim(8, ("dp",)),), "dp"),
        ((SubDim(8, ("dp", "tp")),), ("dp", "tp")),
        *(
            (dim, dim)
            for dim in [
                (SubDim(7), SubDim(8, ("tp",))),
                (SubDim(7), SubDim(8, ("dp", "tp"))),
                (SubDim(6, ("tp",)), SubDim(7), SubDim(8, ("dp",))),
            ]
        ),
    ],
)
def test_how_an_op_is_split_is_read_as_it_was_written(
    tmp_path: Path, dim: DimLayout, entry: Entry
) -> None:
    mesh = ProcessMesh([[0, 1], [2, 3]], dim_names=["dp", "tp"])
    dist = OpDist(mesh, (("i0", dim), ("i1", (SubDim(4),)), ("i2", (SubDim(2, ("tp",)),))))
    text = plan_text(mesh, "", [], [PinnedOp("y", dist, "")], ["y"])
    (tmp_path / "plan.yaml").write_text(text)
    (found,) = load_annotations(tmp_path / "plan.yaml").ops
    assert found.split == (("i0", entry), ("i2", "tp"))


@pytest.mark.parametrize(
    ("mesh", "strategy", "cluster"),
    [
        ("dp=2,tp=2", "fsdp:dp,tensor:tp", "cpu"),
        pytest.param("dp=2,tp=3", "zero1:dp,tensor:tp", "h100", marks=pytest.mark.slow),
        pytest.param("dp=4", "zero2:dp", "cpu", marks=pytest.mark.slow),
        ("dp=2,tp=2", "auto", "h100"),
        pytest.param("dp=2,tp=2", "data:dp,tensor:tp,sequence:tp", "torus", marks=pytest.mark.slow),
    ],
)
def test_a_training_step_is_compiled_again_from_its_plan(
    mesh: str, strategy: str, cluster: str, tmp_path: Path
) -> None:
    first = compiled(mesh=mesh, strategy=strategy, cluster=cluster)
    autopar.save_plan(first, tmp_path / "plan.yaml")
    again = compiled(mesh=mesh, plan=tmp_path / "plan.yaml", cluster=cluster)
    assert programs(again) == programs(first)
    assert autopar.plan_of(again).count("split:") <= autopar.plan_of(first).count("split:")


def test_a_step_of_open_sizes_is_compiled_again_from_its_plan(tmp_path: Path) -> None:
    both = {0: "batch", 1: "length=1:64"}
    dynamic = {"ids": both, "target": both}
    first = compiled(mesh="dp=2,tp=2", strategy="ddp:dp,tensor:tp", dynamic=dynamic)
    plan = tmp_path / "plan.yaml"
    autopar.save_plan(first, plan)
    assert "($batch@dp)($length)" in plan.read_text()
    again = compiled(mesh="dp=2,tp=2", plan=plan, dynamic=dynamic)
    assert programs(again) == programs(first)
    with pytest.raises(AnnotationError, match=r"multiply to \$batch \* \$length, but .* has 128"):
        compiled(mesh="dp=2,tp=2", plan=plan)


class Chain(nn.Module):
    """Two layers, each of which is a stage."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


@pytest.mark.parametrize(
    ("strategy", "shard", "pinned"),
    [
        ("", None, "  x: {layout: [-1, -1], on: {pp: 0}}"),
        ("data:tp", None, "  x: {layout: [tp, -1], on: {pp: 0}}"),
        ("none", {"x": [None, "tp"]}, "  x: [-1, tp]"),
    ],
)
def test_a_pipeline_is_compiled_again_from_its_plan(
    strategy: str, shard: dict[str, list[str | None]] | None, pinned: str, tmp_path: Path
) -> None:
    def compiled_chain(**options: Any) -> CompiledModel:
        torch.manual_seed(0)
        x = torch.ones(7, 8)
        return autopar.compile(Chain(), x, mesh="pp=2,tp=2", pipeline="pp", **options)

    first = compiled_chain(strategy=strategy, shard=shard)
    plan = tmp_path / "plan.yaml"
    autopar.save_plan(first, plan)
    assert pinned in plan.read_text().splitlines()
    assert programs(compiled_chain(plan=plan)) == programs(first)


class Shared(nn.Module):
    """Stages that share a table, of which one reads the first one's result again."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.early, self.scores = nn.Linear(16, 64), nn.Linear(16, 64, bias=False)
        self.scores.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        first = torch.tanh(self.layers[0](x))
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.scores(x + first) + self.early(first)


@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [("pp=3", "1f1b"), ("pp=2,tp=2", "dualpipe-v"), ("dp=2,pp=2", "interleaved"), ("pp=2", "zb-v")],
)
def test_a_pipeline_that_trains_is_compiled_again_from_its_plan(
    mesh: str, schedule: str, tmp_path: Path
) -> None:
    def compiled_stages(**options: Any) -> CompiledModel:
        torch.manual_seed(0)
        model, ids = Shared(), torch.zeros(8, 4, dtype=torch.int64)
        return autopar.compile(
            model,
            (ids, ids),
            loss=loss,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
            accumulate=4,
            mesh=mesh,
            pipeline="pp",
            schedule=schedule,
            **options,
        )

    first = compiled_stages()
    plan = tmp_path / "plan.yaml"
    autopar.save_plan(first, plan)
    assert programs(compiled_stages(plan=plan)) == programs(first)


def test_marks_on_slices_go_with_a_plan(tmp_path: Path) -> None:
    mesh = ProcessMesh([[0, 1], [2, 3]], dim_names=["side", "tp"])

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 6), nn.Linear(8, 6)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            left = self.left(annotate.shard(x, mesh["side", 0], ["tp", None]))
            right = self.right(annotate.shard(y, mesh["side", 1], ["tp", None]))
            return left + right

    def compiled_halves(**options: Any) -> CompiledModel:
        torch.manual_seed(0)
        return autopar.compile(Halves(), (torch.ones(7, 8), torch.ones(7, 8)), mesh=mesh, **options)

    first = compiled_halves(strategy=None)
    plan = tmp_path / "plan.yaml"
    autopar.save_plan(first, plan)
    assert str(Path(__file__).parent) not in plan.read_text()
    assert programs(compiled_halves(plan=plan)) == programs(first)


def test_a_plan_decides_whatever_the_cluster(tmp_path: Path) -> None:
    """What is split how doesn't depend on the cluster; how values are moved there may."""
    first = compiled(mesh="dp=2,tp=2", strategy="fsdp:dp,tensor:tp", cluster="h100")
    autopar.save_plan(first, tmp_path / "plan.yaml")
    again = compiled(mesh="dp=2,tp=2", plan=tmp_path / "plan.yaml", cluster="cpu")
    layouts = [
        {name: value.dist for name, value in step.completed.main.values.items()}
        for step in (first, again)
    ]
    assert layouts[0] == layouts[1]
    choices = [[op.dist for op in step.completed.main.ops] for step in (first, again)]
    assert choices[0] == choices[1]


def test_a_plan_reads_well() -> None:
    text = autopar.plan_of(compiled(mesh="dp=2,tp=2", strategy="data:dp,tensor:tp"))
    assert "  blocks.*.qkv.weight: [(3)(48@tp), -1]\n" in text
    assert "# preset: tensor:tp\n" in text
    assert "aten.addmm.default at test_plans.py:" in text
    assert str(Path.cwd()) not in text
    assert max(map(len, text.splitlines())) <= 120


def test_an_edited_plan_is_followed(tmp_path: Path) -> None:
    first = compiled(mesh="tp=2", strategy="tensor:tp")
    text = autopar.plan_of(first)
    assert "blocks.*.up.weight: [tp, -1]" in text
    path = tmp_path / "plan.yaml"
    path.write_text(text.replace("blocks.*.up.weight: [tp, -1]", "blocks.*.up.weight: [-1, tp]"))
    edited = compiled(mesh="tp=2", plan=path).serial.main.values
    assert str(edited["blocks.1.up.weight"].dist) == "[192, 48@tp]"


def test_an_onnx_model_is_compiled_again_from_its_plan(tmp_path: Path) -> None:
    build = command.compiled(tmp_path)
    plan = tmp_path / "plan.yaml"
    done = command.autopar("plan", build, "-o", plan)
    assert (done.exit_code, done.output) == (0, "")
    assert command.autopar("plan", build).output == plan.read_text()
    model, again = tmp_path / "model.onnx", tmp_path / "again"
    words = ["--mesh", "2x4", "--dims", "batch=8", "-o", again, "-q", "--plan", plan]
    done = command.autopar("compile", model, *words, "--cluster", "cpu")
    assert done.exit_code == 0, done.output
    assert read_build(again).deployment == read_build(build).deployment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ops: [{of: [h], split: {z: tp}}]", "has no factor 'z'; it has m, k, n"),
        ("ops: [{of: [h], split: {m: up}}]", "plan.yaml:1: %h, made by aten.mm.default: "),
        ("ops: [{of: [hh], split: {}}]", "'hh' matches the result of no op; did you mean h"),
        ("ops: [{of: [h], split: {}, body: b}]", "has no body 'b'; it has none"),
        ("ops: [{of: [h]}]", "an op needs 'of', the names, and 'split'"),
        ("ops: [{of: [h], splits: {}}]", "unknown key 'splits'; did you mean split?"),
        ("ops: [{of: [h], split: {m: tp, n: tp}}]", "tp is used more than once"),
        ("ops: [{of: [a], split: {i0: (3)(4@tp)}}]", "(3)(4@tp) multiply to 12"),
        ("ops: [{of: [h], split: {m: ''}}]", "plan.yaml:1: expected one entry: -1, an axis, or"),
        ("ops: [{of: [h], split: {m: {k: tp}}}]", "plan.yaml:1: expected one entry: -1, an axis"),
        ("ops: [{of: [h], split: {m: 'tp, tp'}}]", "plan.yaml:1: expected one entry: -1, an ax"),
        ("ops: [{of: [h], split: {}, pending: {tp: []}}]", "the positions of the operands"),
        ("ops: [{of: [h], split: {}, pending: {tp: sum}}]", "expected a list"),
        ("ops: [{of: [h], split: {}, pending: {tp: [sum]}}]", "the positions of the operands"),
        ("shrad: {x: [tp]}", "unknown key 'shrad'; did you mean shard?"),
        ("shard: {x: [(3)(4@tp), -1]}", "(3)(4@tp) multiply to 12, but the dimension has 8"),
        ("shard: {x: {layout: [-1, -1], parts: 2}}", "expected a list, or {layout: [...]"),
        ("shard: {x: {layout: [-1, -1], on: {tp: 2}}}", "tp has 2 processes, 0 to 1, and so no"),
        ("shard: {x: {layout: [-1, -1], on: {up: 0}}}", "mesh has no axis 'up', only ['tp']"),
        ("shard: {x: {layout: [-1, -1], on: {tp: a}}}", "on must be {axis: index}"),
        ("shard: {x: {layout: [-1, tp], on: {tp: 0}}}", "mesh has no axis 'tp'"),
        ("memory: lots", "plan.yaml:1: memory 'lots': write a number"),
        ("mesh: tp=3", "is for tp=3, but mesh= says"),
    ],
)
def test_what_is_wrong_with_a_plan(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "model.onnx").write_bytes(command.two_layers().SerializeToString())
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(AnnotationError) as error:
        autopar.compile_onnx(
            tmp_path / "model.onnx",
            tmp_path / "build",
            mesh="tp=2",
            dims={"batch": 8},
            plan=tmp_path / "plan.yaml",
        )
    assert message in str(error.value)


def test_a_plan_that_can_not_be_written(tmp_path: Path) -> None:
    step = compiled(mesh="tp=2")
    with pytest.raises(InvalidInputError, match="can't write"):
        autopar.save_plan(step, tmp_path / "none" / "plan.yaml")


class Grouped(nn.Module):
    """Attention with fewer heads of keys and values than of queries, in one fused projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 64 + 32 + 32), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split([64, 32, 32], -1)
        q = q.view(*x.shape[:2], 4, 16).transpose(1, 2)
        k, v = (each.view(*x.shape[:2], 2, 16).transpose(1, 2) for each in (k, v))
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        out: torch.Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


def test_a_weight_that_was_taken_apart(tmp_path: Path) -> None:
    """A plan names the parts."""
    model, x = Grouped(), torch.zeros(4, 512, 64)
    first = autopar.compile(model, x, mesh="tp=2", strategy="tensor:tp")
    autopar.save_plan(first, tmp_path / "plan.yaml")
    text = (tmp_path / "plan.yaml").read_text()
    assert "apart: true\n" in text
    again = autopar.compile(model, x, mesh="tp=2", plan=tmp_path / "plan.yaml")
    assert programs(again) == programs(first)
    assert str(tmp_path) not in autopar.plan_of(again)


class Fused(nn.Module):
    """Attention of six heads over two of keys and values, computed by a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(24, 40), nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).split([24, 8, 8], -1)
        q, k, v = (part.view(*x.shape[:2], -1, 4).transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: torch.Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


def test_a_fused_weight_that_was_left_whole(tmp_path: Path) -> None:
    """It stays whole, also where its parts would be faster with what the plan pins."""
    model, x = Fused().eval(), torch.zeros(4, 6, 24)
    first = autopar.compile(model, x, mesh="dp=2,tp=2", strategy="data:dp,tensor:tp")
    assert "qkv.weight" in first.stored_layouts()
    autopar.save_plan(first, tmp_path / "plan.yaml")
    assert "apart:" not in (tmp_path / "plan.yaml").read_text()
    again = autopar.compile(model, x, mesh="dp=2,tp=2", plan=tmp_path / "plan.yaml")
    assert programs(again) == programs(first)


def test_a_plan_holds_the_memory_limit(tmp_path: Path) -> None:
    """What is computed again follows from it; a limit that is given goes before."""
    plan = tmp_path / "plan.yaml"
    on: dict[str, Any] = {"mesh": "dp=2,tp=2", "chunks": {}}
    options = {**on, "strategy": "data:dp,tensor:tp"}
    unlimited = compiled(64, **options)
    most = memory_timeline(unlimited.partitioned).peak_bytes
    first = compiled(64, **options, memory=most * 9 // 10)
    assert any(op.plan for op in first.partitioned.main.ops)
    autopar.save_plan(first, plan)
    assert f"memory: {most * 9 // 10}B  # " in plan.read_text()
    again = compiled(64, **on, plan=plan)
    assert programs(again) == programs(first)
    roomy = compiled(64, **on, plan=plan, memory=most)
    assert programs(roomy) == programs(unlimited)
    shown = " ".join(str(autopar.diff(first, roomy)).split())
    assert f"memory limit {human_bytes(most * 9 // 10)} {human_bytes(most)}" in shown


def test_a_limit_that_is_missed_is_named_with_the_file_that_sets_it(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("memory: 0.5KiB\n")
    asked: dict[str, Any] = {"mesh": "tp=2", "strategy": "data:tp", "plan": plan, "chunks": {}}
    with pytest.raises(DoesNotFit) as error:
        compiled(64, **asked)
    assert f"more than the limit of 512 B in {plan}; raise the limit to " in str(error.value)
    with pytest.raises(DoesNotFit, match=r"more than the limit of 512 B; raise"):
        compiled(64, **asked, memory=512)


def test_what_no_strategy_decided_is_a_plan_too(tmp_path: Path) -> None:
    """Nothing but pins, or nothing at all, and what follows."""
    for pins, said in (({}, "of which none are pinned"), ({"*.up.weight": ["tp", -1]}, "pinned")):
        first = compiled(mesh="tp=2", strategy="none", shard=pins)
        text = autopar.plan_of(first)
        assert said in text.splitlines()[0]
        assert "  # default\n" in text
        (tmp_path / "plan.yaml").write_text(text)
        again = compiled(mesh="tp=2", plan=tmp_path / "plan.yaml")
        assert programs(again) == programs(first)
        assert autopar.diff(first, again).layouts == ()


@pytest.mark.slow
def test_a_plan_goes_with_a_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharding and recomputation that were searched together are compiled again."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from train_gpt import GPT, adamw, batch, criterion

    def step(**options: Any) -> CompiledModel:
        model = GPT()
        known = {"mesh": "dp=2,tp=2", "optimizer": adamw(model)}
        return autopar.compile(model, batch(0), loss=criterion, **known, **options)

    first = step(strategy="auto", memory="9MiB")
    autopar.save_plan(first, tmp_path / "plan.yaml")
    assert programs(step(plan=tmp_path / "plan.yaml")) == programs(first)
