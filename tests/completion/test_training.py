"""Training steps on any mesh do what one device does, and reduce each gradient once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from autopar.base.errors import AnnotationError
from tests.given.training_steps import ADAMW, Loss, Step, training
from tests.judges.captured import Captured, check, collectives, compiled

VOCABULARY, BATCH, SEQUENCE, WIDTH, HEADS = 40, 12, 12, 24, 4


class Block(nn.Module):
    """A causal transformer block, layer norms first."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, width = x.shape
        y = self.ln1(x)
        q, k, v = (
            part(y).view(batch, sequence, HEADS, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-1, -2) / (width // HEADS) ** 0.5
        mask = torch.ones(sequence, sequence, dtype=torch.bool).tril()
        shares = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((shares @ v).transpose(1, 2).reshape(batch, sequence, width))
        hidden = torch.nn.functional.gelu(self.up(self.ln2(x)), approximate="tanh")
        return x + self.down(hidden)


class Language(nn.Module):
    """A language model with tied embeddings."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.ln = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.ln(x) @ self.wte.weight.T


def cross_entropy(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Of the next tokens."""
    logits = module(batch["tokens"])
    picked = logits.gather(-1, batch["labels"].unsqueeze(-1)).squeeze(-1)
    return (logits.logsumexp(-1) - picked).mean()


STEPS = {
    "sgd": Step(),
    "adamw": Step(states=ADAMW, clip=0.1),
    "accumulated": Step(states=ADAMW, clip=0.1, microbatches=2),
}


@cache
def language(step: str) -> Captured:
    """Returns a training step of a language model of one layer."""
    torch.manual_seed(0)
    shape = (BATCH, SEQUENCE)
    batch = {name: torch.randint(0, VOCABULARY, shape) for name in ("tokens", "labels")}
    loss: Loss = cross_entropy  # type: ignore[assignment]
    return training(Language(1), loss, batch, STEPS[step])


ONE_AXIS = ("ddp:a", "zero1:a", "zero2:a", "fsdp:a", "tensor:a", "tensor:a,sequence:a", "context:a")
FAST = [
    ("sgd", "a=2", "zero2:a"),
    ("sgd", "a=3", "context:a"),
    ("adamw", "a=2", "tensor:a,sequence:a"),
    ("adamw", "a=3", "fsdp:a"),
    ("accumulated", "a=2", "zero1:a"),
    ("accumulated", "a=3", "ddp:a"),
]
REST = [
    pytest.param(step, mesh, strategy, marks=pytest.mark.slow)
    for step in STEPS
    for mesh in ("a=2", "a=3")
    for strategy in ONE_AXIS
    if (step, mesh, strategy) not in FAST
]


@pytest.mark.parametrize(("step", "mesh", "strategy"), [*FAST, *REST])
def test_a_step_is_that_of_one_device(step: str, mesh: str, strategy: str) -> None:
    captured = language(step)
    check(captured, compiled(captured, mesh, strategy), 1e-5)


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [
        ("a=2,b=2", "ddp:a,tensor:b"),
        ("a=2,b=3", "fsdp:a,tensor:b,sequence:b"),
        ("a=2,b=2,c=2", "zero1:a,tensor:b,context:c"),
        pytest.param("a=2,b=3", "zero1:a,tensor:b", marks=pytest.mark.slow),
        pytest.param("a=2,b=2", "zero2:a,tensor:b", marks=pytest.mark.slow),
        pytest.param("a=2,b=3", "fsdp:a,tensor:b", marks=pytest.mark.slow),
        pytest.param("a=2,b=2,c=2", "ddp:a,fsdp:b,tensor:c", marks=pytest.mark.slow),
        pytest.param("a=2,b=2,c=2", "fsdp:a,context:b,tensor:c,sequence:c", marks=pytest.mark.slow),
    ],
)
def test_presets_combine(mesh: str, strategy: str) -> None:
    captured = language("adamw")
    check(captured, compiled(captured, mesh, strategy), 1e-5)


class Mixture(nn.Module):
    """Experts that all see every token, weighted by a gate."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 32) / WIDTH)
        self.down = nn.Parameter(torch.randn(experts, 32, WIDTH) / 32)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        shares = self.gate(tokens).softmax(-1).T.unsqueeze(-1)
        hidden = torch.bmm(tokens.expand(self.up.shape[0], *tokens.shape), self.up).relu()
        return (torch.bmm(hidden, self.down) * shares).sum(0).view_as(x)


def squares(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean of the squares of what a module makes of a batch."""
    found: Tensor = module(batch["x"])
    return found.square().mean()


@cache
def mixture() -> Captured:
    """Returns a training step of a mixture of experts."""
    torch.manual_seed(0)
    loss: Loss = squares  # type: ignore[assignment]
    return training(Mixture(6), loss, {"x": torch.randn(BATCH, 4, WIDTH)}, STEPS["adamw"])


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [("a=2", "expert:a"), ("a=3", "expert:a"), ("a=2,b=2", "fsdp:a,expert:b")],
)
def test_experts_are_computed_where_they_are(mesh: str, strategy: str) -> None:
    done = compiled(mixture(), mesh, strategy)
    check(mixture(), done, 1e-5)
    axis = strategy[-1]
    for name in ("up", "down"):
        layout = done.serial.main.values[name].dist
        assert layout is not None
        assert axis in {a for sub in layout.dims[0] for a in sub.axes}
    for op in done.serial.main.ops:
        if op.kind == "aten.bmm.default":
            assert op.dist is not None
            assert op.dist.factor("b")


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("expert:a", "no weight is a stack of experts"),
        ("sequence:a", "no weight is split along a; add tensor:a"),
    ],
)
def test_a_preset_that_finds_nothing_says_so(strategy: str, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        compiled(language("sgd"), "a=2", strategy)


def test_rows_of_features_have_no_sequence() -> None:
    captured = training(nn.Linear(8, 8), squares, {"x": torch.randn(4, 8)}, Step())  # type: ignore[arg-type]
    with pytest.raises(AnnotationError, match="nothing has a sequence"):
        compiled(captured, "a=2", "context:a")


def test_between_blocks_the_sequence_is_split() -> None:
    """An all_reduce becomes a reduce_scatter, and every product gathers what it reads."""
    done = compiled(language("sgd"), "a=2", "tensor:a,sequence:a")
    kinds = [
        one.kind for one in collectives(done) if one.bytes >= 4 * BATCH * SEQUENCE * WIDTH // 2
    ]
    # The table, attention and the network; their gradients; the head's.
    assert kinds.count("reduce_scatter") == 6
    # Before attention, the network and the head; again for the gradients of their weights; and the
    # gradients of what left attention, the network and the table.
    assert kinds.count("all_gather") == 9
    assert "all_reduce" not in kinds


class Masked(nn.Module):
    """Attention with a mask of numbers that depends on the batch, and no further layer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        heads = ((*x.shape[:2], HEADS, -1),) * 3
        parts = zip((self.q, self.k, self.v), heads, strict=True)
        q, k, v = (part(x).view(shape).transpose(1, 2) for part, shape in parts)
        mask = torch.where(
            keep[:, None, None, :] | torch.eye(SEQUENCE, dtype=torch.bool), 0.0, -9.0
        )
        scores = q @ k.transpose(-1, -2) + mask
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_masks_are_computed_whole_between_blocks() -> None:
    """They are as long as a sequence, but read whole where heads are split."""
    torch.manual_seed(0)

    def loss(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        found: Tensor = module(batch["x"], batch["keep"])
        return found.square().mean()

    x, keep = torch.randn(BATCH, SEQUENCE, WIDTH), torch.rand(BATCH, SEQUENCE) > 0.5
    captured = training(Masked(), loss, {"x": x, "keep": keep}, Step())  # type: ignore[arg-type]
    done = compiled(captured, "a=2", "tensor:a,sequence:a")
    mask = 4 * BATCH * SEQUENCE * SEQUENCE
    assert not any(one.bytes == mask for one in collectives(done) if one.kind == "all_gather")
    check(captured, done, 1e-5)


def moved(step: str, mesh: str, strategy: str, kind: str) -> int:
    """Returns the bytes that collectives of a kind leave on a rank."""
    done = compiled(language(step), mesh, strategy)
    return sum(one.bytes for one in collectives(done) if one.kind == kind)


def parameter_bytes(step: str, least_dims: int = 0) -> int:
    """Returns the bytes of all parameters."""
    tensors = language(step).weights.items()
    return sum(4 * t.numel() for n, t in tensors if "/" not in n and t.dim() >= least_dims)


def test_data_parallel_processes_reduce_each_gradient_once() -> None:
    """And the loss. The tied table is reduced once, and once only in spite of two uses."""
    assert moved("sgd", "a=2", "ddp", "all_reduce") == parameter_bytes("sgd") + 4


@cache
def network(microbatches: int) -> Captured:
    """Returns a training step of a network whose weights are larger than its activations."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
    loss: Loss = squares  # type: ignore[assignment]
    return training(module, loss, {"x": torch.randn(16, 64)}, Step(microbatches=microbatches))


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("mesh", ["a=2", "a=8"])
def test_data_parallel_processes_gather_nothing_however_small_the_batch(
    microbatches: int, mesh: str
) -> None:
    """Though on slow links gathering the batch would take less time than reducing gradients."""
    captured = network(microbatches)
    done = compiled(captured, mesh, "ddp")
    moves = collectives(done)
    assert {one.kind for one in moves} == {"all_reduce"}
    gradients = sum(4 * tensor.numel() for tensor in captured.weights.values())
    assert gradients < sum(one.bytes for one in moves) <= gradients + 4 * microbatches
    check(captured, done, 1e-5)


def test_what_the_user_splits_along_the_axis_of_the_batch_is_decided_by_cost() -> None:
    done = compiled(network(1), "a=2", "ddp", "0.weight=[a,-1]", "2.weight=[-1,a]")
    assert not any(one.bytes >= 4 * 64 * 512 for one in collectives(done))
    check(network(1), done, 1e-5)


@pytest.mark.parametrize(("preset", "gathers"), [("zero1", 1), ("zero2", 1), ("fsdp", 2)])
def test_what_is_kept_split_is_scattered_once_and_gathered(preset: str, gathers: int) -> None:
    """Vectors are small enough to stay whole; positions aren't read in the backward pass."""
    split = parameter_bytes("adamw", 2)
    assert moved("adamw", "a=2", preset, "reduce_scatter") == split // 2
    positions = 4 * SEQUENCE * WIDTH if preset == "fsdp" else 0
    assert moved("adamw", "a=2", preset, "all_gather") == gathers * split - positions


@pytest.mark.parametrize("strategy", ["ddp", "none"])
def test_a_pin_of_state_alone_splits_nothing_else(strategy: str) -> None:
    """It is what zero1 does, for one parameter."""
    pins = ["exp_avg*/blocks.0.up.weight=[a,-1]"]
    pins += ["tokens=[a,-1]", "labels=[a,-1]"] if strategy == "none" else []
    captured = language("adamw")
    done = compiled(captured, "a=2", strategy, *pins)
    values = done.serial.main.values
    for name, value in values.items():
        if value.role in ("parameter", "optimizer_state"):
            assert value.dist is not None
            split = any(mapping != -1 for mapping in value.dist.dims_mapping)
            assert split == (name.startswith("exp_avg") and name.endswith("up.weight"))
    check(captured, done, 1e-5)
    weight = 4 * captured.weights["blocks.0.up.weight"].numel()
    by_kind: dict[str, int] = {}
    for one in collectives(done):
        by_kind[one.kind] = by_kind.get(one.kind, 0) + one.bytes
    # Besides the gradients, the loss and the square of the norm's split part are summed.
    whole = parameter_bytes("adamw") - weight + 2 * 4
    assert by_kind == {"all_reduce": whole, "reduce_scatter": weight // 2, "all_gather": weight}


def test_a_pin_of_state_leaves_the_parameter_to_the_other_pins() -> None:
    captured = language("adamw")
    pin = "exp_avg*/blocks.0.[qkvud]*.weight=[a,-1]"
    free, done = (compiled(captured, "a=2,b=2", "ddp:a,tensor:b", *pins) for pins in ((), (pin,)))
    for name, value in done.serial.main.values.items():
        if value.role == "parameter":
            assert value.dist == free.serial.main.values[name].dist, name
    check(captured, done, 1e-5)


@pytest.mark.parametrize("preset", ["ddp", "zero1", "zero2", "fsdp"])
def test_gradients_stay_pending_while_they_are_accumulated(preset: str) -> None:
    """The scalar losses of the microbatches don't."""
    kind = "all_reduce" if preset == "ddp" else "reduce_scatter"
    accumulated, at_once = (moved(step, "a=2", preset, kind) for step in ("accumulated", "adamw"))
    assert at_once <= accumulated <= at_once + 4


def test_no_gathered_parameter_is_kept_for_the_backward_pass() -> None:
    done = compiled(language("sgd"), "a=2", "fsdp")
    phase = {name: op.phase for op in done.partitioned.main.ops for name in op.results}
    gathered = {o.results[0] for o in done.partitioned.main.ops if o.kind == "comm.all_gather"}
    for op in done.partitioned.main.ops:
        assert all(phase[name] == op.phase for name in op.operands if name in gathered)
