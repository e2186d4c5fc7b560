"""Models whose code asks for values: what programs assume, and do where that is wrong."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import autopar
from autopar import ProcessMesh, runtime
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Captured, capture
from autopar.frontend.torch.conditions import cones
from autopar.ir.assumptions import Assumption, assumption_ports

Forward = Callable[[nn.Module, Tensor], Tensor]


class Asking(nn.Module):
    """A layer, and a function of its result that may ask for values."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.shared = nn.Parameter(torch.randn(4))
        self.register_buffer("calls", torch.zeros(()))
        self.then = forward

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)  # type: ignore[operator]
        return self.then(self, self.layer(x))


def assumed(captured: Captured) -> list[Assumption]:
    program = captured.program
    return [Assumption.from_port(port) for port in assumption_ports(program, program.main)]


def branch(model: nn.Module, h: Tensor) -> Tensor:
    return h * 2 if (h > 100).any() else h + 1


def count(model: nn.Module, h: Tensor) -> Tensor:
    return h * int((h > 100).sum())


def listed(model: nn.Module, h: Tensor) -> Tensor:
    return h + (h > 100).sum(0).tolist()[1]


def equal(model: nn.Module, h: Tensor) -> Tensor:
    return h + torch.equal(h.clamp(max=100), h)


def close(model: nn.Module, h: Tensor) -> Tensor:
    return h + 1 if torch.allclose(h.clamp(max=100), h) else h


def asserted(model: nn.Module, h: Tensor) -> Tensor:
    torch._assert_async((h < 100).all(), "not so large")
    return h


def picked(model: nn.Module, h: Tensor) -> Tensor:
    return h[h[:, 0] > 100].flip(0).sum(0) + h.sum()


def rotated(model: nn.Module, h: Tensor) -> Tensor:
    large = (h > 100).sum().float()
    return h + torch.complex(large * 0 + 2, large).item().real


def formatted(model: nn.Module, h: Tensor) -> Tensor:
    """Takes what is called as a number of the batch says."""
    return {"part_0": h, "part_6": h * 2}[f"part_{(h > 100).any(1).sum()}"]


def inverse(model: nn.Module, h: Tensor) -> Tensor:
    # What is too large leaves no inverse.
    return torch.linalg.inv(torch.where(h.abs().max() > 100, 0.0, 1.0) * torch.eye(4) * 2) @ h.T


QUESTIONS = {
    branch: False,
    count: 0,
    listed: 0,
    equal: True,
    close: True,
    asserted: True,
    picked: 0,
    rotated: 0.0,
    formatted: 0,
    inverse: True,
}


def usual() -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def large() -> Tensor:
    return 1e4 * usual().abs()


@pytest.mark.parametrize("ask", QUESTIONS)
@pytest.mark.parametrize("mesh", ["2", "3x2"])
def test_what_the_example_answers(tmp_path: Path, ask: Forward, mesh: str) -> None:
    model = Asking(ask)
    compiled = autopar.compile(model, (usual(),), mesh=mesh, strategy="data")
    expected = {each.expected for each in map(Assumption.from_port, _ports(compiled))}
    assert QUESTIONS[ask] in expected
    summary = compiled.summary()
    assert f"assumes  {Path(__file__).name}:" in summary
    compiled.save(tmp_path / "build")
    found = runtime.run(tmp_path / "build", {"x": usual()}, virtual=True)
    assert list(found) == ["output"]
    torch.testing.assert_close(found["output"], model(usual()))
    with pytest.raises(InvalidInputError, match=rf"{Path(__file__).name}:\d+"):
        runtime.run(tmp_path / "build", {"x": large()}, virtual=True)
    with pytest.raises(InvalidInputError, match=rf"{Path(__file__).name}:\d+"):
        runtime.run(tmp_path / "build", {"x": large()}, serial=True)


def _ports(compiled: Any) -> Any:
    program = compiled.serial
    return assumption_ports(program, program.main)


def test_the_message() -> None:
    [assumption] = set(assumed(capture(Asking(branch), (usual(),))))
    assert str(assumption).endswith("(return h * 2 if (h > 100).any() else h + 1) is False")
    said = assumption.refusal(True)
    assert "was False for the example" in said
    assert "is True for this input" in said
    [assertion] = assumed(capture(Asking(asserted), (usual(),)))
    assert str(assertion).endswith("(not so large) is True")
    assert "not so large (torch._assert_async((h < 100).all()" in assertion.refusal(False)


@pytest.mark.parametrize("ask", [branch, count, asserted, picked])
def test_training_goes_on(tmp_path: Path, ask: Forward) -> None:
    """A batch that would go the other way changes nothing, and the next one is trained on."""
    model = Asking(ask)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    target = torch.ones(6, 4)

    def loss(found: Tensor, target: Tensor) -> Tensor:
        return (found - target).square().mean()

    compiled = autopar.compile(
        *(model, (usual(), target)), mesh="2x2", strategy="fsdp", loss=loss, optimizer=optimizer
    )
    compiled.save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        losses = [trainer.step((usual(), target))]
        before = trainer.state_dict()
        with pytest.raises(InvalidInputError, match="for this input"):
            trainer.step((large(), target))
        after = trainer.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in before)
        losses.append(trainer.step((usual(), target)))
        assert trainer.state_dict()["calls"] == 2
    for found in losses:
        expected = loss(model(usual()), target)
        torch.testing.assert_close(found, expected.detach())
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()


@pytest.mark.parametrize("mesh", ["2", "3x2"])
def test_floats_are_the_same_but_for_rounding(tmp_path: Path, mesh: str) -> None:
    """Each mesh adds in an order of its own."""

    def ask(model: nn.Module, h: Tensor) -> Tensor:
        return h * float((h.detach() * 1000).sum())

    model = Asking(ask)
    autopar.compile(model, (usual(),), mesh=mesh, strategy="data").save(tmp_path / "build")
    found = runtime.run(tmp_path / "build", {"x": usual()}, virtual=True)["output"]
    torch.testing.assert_close(found, model(usual()), rtol=1e-5, atol=1e-5)
    with pytest.raises(InvalidInputError, match="for this input"):
        runtime.run(tmp_path / "build", {"x": usual() + 1e-3}, virtual=True)


def test_values_are_let_go_where_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cones, "ROOM", 200)

    def ask(model: nn.Module, h: Tensor) -> Tensor:
        for _ in range(5):
            h = (h.sin() + h).cos()
            h = h + int(h.abs().max() < 100)
        return h

    asked = [each.expected for each in assumed(capture(Asking(ask), (usual(),)))]
    assert asked == [True] * 5


def test_microbatches_assume_one_by_one() -> None:
    model = Asking(branch)
    compiled = autopar.compile(
        *(model, (usual(), torch.ones(6, 4))),
        mesh="2",
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        accumulate=3,
    )
    assert len(_ports(compiled)) == 3


class OfInput(nn.Module):
    """Asks for values of its input only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)  # type: ignore[operator]
        found: Tensor = self.layer(x * 2 if (x > 100).any() else x + 1)
        return found


@pytest.mark.parametrize("make", [OfInput, lambda: Asking(branch)])
def test_parallelize(make: Callable[[], nn.Module]) -> None:
    expected = make()(usual())
    parallel = autopar.parallelize(make(), (usual(),), mesh="1")
    torch.testing.assert_close(parallel(usual()), expected)
    with pytest.raises(InvalidInputError, match="for this input"):
        parallel(large())
    torch.testing.assert_close(parallel(usual()), expected)
    assert parallel.state_dict()["calls"] == 2
    # What the first program assumes, those for batches of other shapes assume too.
    torch.testing.assert_close(parallel(usual()[:3]), make()(usual()[:3]))


def test_parallelize_another_shape_with_several_questions_on_a_line() -> None:
    """Each is answered as it was before, and constants answer for nothing else."""

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.few = torch.tensor(3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            for large in (100, -100):
                h = h + int((h > large).any()) + int(self.few)
            found: Tensor = h
            return found

    torch.manual_seed(0)
    model = Asks()
    batches = usual(), usual()[:3], 1e4 * torch.ones(2, 4)
    first, second = (model(batch).detach() for batch in batches[:2])
    parallel = autopar.parallelize(model, (batches[0],), mesh="1")
    torch.testing.assert_close(parallel(batches[0]), first)
    torch.testing.assert_close(parallel(batches[1]), second)
    with pytest.raises(InvalidInputError, match="for this input"):
        parallel(batches[2])


def test_constants_are_no_assumptions() -> None:
    def ask(model: nn.Module, h: Tensor) -> Tensor:
        half = torch.div(torch.tensor(h.shape[0]), 2, rounding_mode="trunc")
        return h[: int(half)] * len(torch.arange(4).repeat(2).unique())

    captured = capture(Asking(ask), (usual(),))
    assert not assumed(captured)
    assert captured.program.signature.outputs[0].shape == (3, 4)


def test_constants_among_questions(tmp_path: Path) -> None:
    """Where torch traces, it answers for constants alone, and the answers of others stay theirs."""

    def ask(model: nn.Module, h: Tensor) -> Tensor:
        half = int(torch.tensor(3) * 2 + 1)
        few = int((h > 100).sum())
        sign = torch.tensor(True).item()
        return h * half + few if (h < 100).all() and sign else h

    model = Asking(ask)
    compiled = autopar.compile(model, (usual(),), mesh="2", strategy="data")
    assert [each.expected for each in map(Assumption.from_port, _ports(compiled))] == [0, True]
    compiled.save(tmp_path / "build")
    found = runtime.run(tmp_path / "build", {"x": usual()}, virtual=True)["output"]
    torch.testing.assert_close(found, model(usual()))


def test_values_on_the_meta_device_are_refused() -> None:
    with torch.device("meta"):
        model = Asking(branch)
    with pytest.raises(InvalidInputError, match="depends on the values of a tensor"):
        capture(model, (usual(),))
    with torch.device("meta"):
        asking = OfInput()
    assert len(assumed(capture(asking, (usual(),)))) == 1


def test_strided_weights_have_the_values_that_they_have() -> None:
    """Fake tensors are dense, and views of them count on it."""

    def ask(model: nn.Module, h: Tensor) -> Tensor:
        return h * int(model.table.view(2, 6)[1, 0])  # type: ignore[union-attr]

    model = Asking(ask)
    model.register_buffer("table", torch.arange(12).reshape(4, 3).t())
    model.table = model.table.t().contiguous().t().reshape(3, 4)
    [assumption] = assumed(capture(model, (usual(),)))
    assert assumption.expected == int(model.table.reshape(2, 6)[1, 0])


def test_lots_are_refused() -> None:
    class Skipping(nn.Module):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.rate = rate

        def forward(self, x: Tensor) -> Tensor:
            lot = torch.rand([])
            skip = lot < self.rate
            return x if skip else x * 2

    with pytest.raises(InvalidInputError, match=r"test_conditions.py:\d+: .*rate \(now 0.25\)"):
        capture(Skipping(0.25), (usual(),))
    for rate, ops in ((0.0, 1), (1.0, 0)):
        captured = capture(Skipping(rate), (usual(),))
        assert not assumed(captured)
        assert len(captured.program.main.ops) == ops


def test_drawn_values_of_the_batch_are_assumed() -> None:
    """Not whether a lot falls is asked, but what is so whichever falls."""

    def ask(model: nn.Module, h: Tensor) -> Tensor:
        dropped = nn.functional.dropout(h, 0.5)
        return dropped if torch.isfinite(dropped).all() else h

    [assumption] = assumed(capture(Asking(ask), (usual(),)))
    assert assumption.expected is True


def used(h: Tensor, lot: Any) -> Tensor:
    return h * lot


def branched(h: Tensor, lot: Any) -> Tensor:
    return h if lot < 0.5 else h * 2


def converted(h: Tensor, lot: Any) -> Tensor:
    return h * math.exp(lot)


def looked_at(h: Tensor, lot: Any) -> Tensor:
    return h if isinstance(lot, float) else h * 2


def compared(h: Tensor, lot: Any) -> Tensor:
    return h if np.float32(0.5) > lot else h * 2


DRAWS = [
    lambda: random.random(),
    lambda: random.uniform(0, 1),
    lambda: np.random.rand(),
    lambda: np.random.uniform(0, 1),
    lambda: np.random.random(),
    lambda: random.gauss(0, 1),
    lambda: np.random.rand(1).item(),
]


USES = [(draw, used) for draw in DRAWS]
USES += [(DRAWS[0], use) for use in (branched, converted, looked_at, compared)]


@pytest.mark.parametrize(("draw", "use"), USES)
def test_lots_of_python_are_refused(
    draw: Callable[[], float], use: Callable[[Tensor, Any], Tensor]
) -> None:
    random.seed(1)
    np.random.seed(1)
    first = draw()
    random.seed(1)
    np.random.seed(1)
    model = Asking(lambda self, h: use(h, draw()))
    with pytest.raises(InvalidInputError, match=r"test_conditions.py:\d+.*random"):
        capture(model, (usual(),))
    assert draw() == first
    assert isinstance(draw(), float)


class Dropping(nn.Module):
    """What is skipped at a rate, as layers of speech models are."""

    def __init__(self, rate: float, draw: Callable[[float, float], float]) -> None:
        super().__init__()
        self.rate = rate
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        lot = self.draw(0, 1)
        if self.training and (lot < self.rate):
            return x
        return x * 2


@pytest.mark.parametrize("draw", [lambda *_: random.uniform(*_), lambda *_: np.random.uniform(*_)])
def test_lots_that_decide_nothing_are_let_be(draw: Callable[[float, float], float]) -> None:
    """A draw isn't read in evaluation, and always tells the same at rates of 0 and 1."""
    state, other = random.getstate(), np.random.get_state(legacy=True)[1]
    for rate, training, ops in ((0.5, False, 1), (0, True, 1), (0.0, True, 1), (1.0, True, 0)):
        captured = capture(Dropping(rate, draw).train(training), (usual(),))
        assert len(captured.program.main.ops) == ops
    assert random.getstate() == state
    assert (np.random.get_state(legacy=True)[1] == other).all()
    with pytest.raises(InvalidInputError, match=r"set rate \(now 0.5\) so that nothing is drawn"):
        capture(Dropping(0.5, draw), (usual(),))


GENERATOR = np.random.default_rng(1)

GENERATORS = [random.Random(1), np.random.RandomState(1), np.random.default_rng(1)]
GENERATORS += [np.random.Generator(np.random.MT19937(1))]


@pytest.mark.parametrize("generator", GENERATORS)
def test_generators_of_a_model_itself_are_refused_where_they_draw(generator: Any) -> None:
    model = Asking(lambda self, h: h * self.own.uniform(0, 1))
    model.own = generator
    with pytest.raises(InvalidInputError, match=r"forward draws from Asking\.own, a generator"):
        capture(model, (usual(),))
    model.then = lambda self, h: h * 2
    capture(model, (usual(),))


def test_generators_of_a_models_file_and_without_a_seed_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"test_conditions\.GENERATOR, a generator"):
        capture(Asking(lambda self, h: h * GENERATOR.random()), (usual(),))
    with pytest.raises(InvalidInputError, match=r"test_conditions.py:\d+.*random"):
        capture(Asking(lambda self, h: h * np.random.default_rng().random()), (usual(),))
    seeded = capture(Asking(lambda self, h: h * np.random.default_rng(3).random()), (usual(),))
    assert [op.kind for op in seeded.program.main.ops][-1] == "aten.mul.Tensor"


def test_numbers_after_a_seed_are_the_same_in_each_step(tmp_path: Path) -> None:
    def permuted(model: nn.Module, h: Tensor) -> Tensor:
        np.random.seed(3)
        random.seed(a=3)
        return h[np.random.permutation(6)] * random.random() * np.random.rand()

    model = Asking(permuted)
    autopar.compile(model, (usual(),), mesh=ProcessMesh([0, 1], ["a"])).save(tmp_path / "build")
    found = runtime.run(tmp_path / "build", {"x": usual()}, virtual=True)["output"]
    torch.testing.assert_close(found, model(usual()))

    def late(model: nn.Module, h: Tensor) -> Tensor:
        h = h * random.gauss(0, 1)
        random.seed(3)
        return h

    with pytest.raises(InvalidInputError, match=r"test_conditions.py:\d+.*random"):
        capture(Asking(late), (usual(),))


def written(model: nn.Module, h: Tensor) -> Tensor:
    h = h.clone()
    h[h[:, 0] > 0] = model.shared
    return h


def written_rows(model: nn.Module, h: Tensor) -> Tensor:
    h = h.clone()
    h[h[:, 0] > 0] = h[h[:, 0] > 0] * 2
    return h


def written_one(model: nn.Module, h: Tensor) -> Tensor:
    h = h.clone()
    h[h > 0] = model.shared[:1]
    return h


def written_wide(model: nn.Module, h: Tensor) -> Tensor:
    h = h.clone()
    h[h[:, 0] > 0] = model.shared[None]
    return h


def read_pair(model: nn.Module, h: Tensor) -> Tensor:
    return (
        h[h[:, 0] > 0, 1].sum()
        + h.masked_select(h > 0).mean()
        + h[torch.nonzero(h[:, 0] > 0)].sum()
    )


def read_places(model: nn.Module, h: Tensor) -> Tensor:
    rows, columns = torch.where(h > 0)
    others = torch.argwhere(h < 0)[:, 0] + torch.nonzero(h < 0, as_tuple=True)[1]
    return h[rows, columns].sum() * others.sum()


def repeated(model: nn.Module, h: Tensor) -> Tensor:
    counts = 1 + (h[:, 0] > 0).long()
    rows = h.repeat_interleave(counts, dim=0) + torch.repeat_interleave(h[:1], counts[:1]).mean()
    return rows.mean() + torch.repeat_interleave(counts).float().mean()


def scattered(model: nn.Module, h: Tensor) -> Tensor:
    rows = (h[:, :1] > 0).expand_as(h)
    wide = h.new_zeros(2, 6, 4).masked_scatter(h[:, 0].reshape(1, 6, 1) > 0, h.repeat(2, 1))
    found = (h * 2).masked_scatter(rows, h).mean() + h.masked_scatter(h > 0, h).mean()
    return found + wide.mean() + h.clone().masked_scatter_(rows, h * 3).mean()


def joined(model: nn.Module, h: Tensor) -> Tensor:
    parts = torch.tensor([[h.max(), 2.0], [h.min(), h[0, :1]]])
    return h + parts.sum() + torch.tensor([(h > 0).sum(), 3], dtype=torch.int32).float().mean()


def pointed(model: nn.Module, h: Tensor) -> Tensor:
    rows, columns = zip(*torch.stack([h.argmax(0), torch.arange(4)], 1), strict=True)
    chosen = torch.zeros_like(h)
    chosen[rows, columns] = 1.0
    return h * chosen + h[[1, h[:, 1].argmin()], 2:].mean()


def added(model: nn.Module, h: Tensor) -> Tensor:
    rows, columns = (each.flip(0) for each in torch.where(h > 0))
    return torch.zeros_like(h).index_add(0, rows, h[rows] * columns[:, None])


def paired(model: nn.Module, h: Tensor) -> Tensor:
    flat = h.flatten()
    mask, chosen = flat > 0, flat.new_zeros(flat.numel(), 4)
    chosen[mask, (torch.arange(flat.numel()) % 4)[mask]] = 2.0
    return h * chosen.sum(1).reshape(h.shape)


@pytest.mark.parametrize("ask", [added, paired])
def test_a_mask_that_selects_less_is_told_of_as_such(tmp_path: Path, ask: Forward) -> None:
    """And not the indices that are missing."""
    model = Asking(ask)
    autopar.compile(model, (usual(),), mesh=ProcessMesh([0, 1], ["a"])).save(tmp_path / "build")
    found = runtime.run(tmp_path / "build", {"x": usual()}, virtual=True)["output"]
    torch.testing.assert_close(found, model(usual()))
    with torch.no_grad():
        fewer = next(x for x in (usual() * k for k in range(-9, 9)) if fewer_than(model, x))
    with pytest.raises(InvalidInputError, match=r"test_conditions.py:\d+: .* for this input"):
        runtime.run(tmp_path / "build", {"x": fewer}, virtual=True)


def fewer_than(model: nn.Module, x: Tensor) -> bool:
    """Whether fewer elements are above 0 than usually, and some are."""
    count, usually = (int((model.layer(each) > 0).sum()) for each in (x, usual()))  # type: ignore[operator]
    return 0 < count < usually


READING = [written, written_rows, written_one, written_wide, read_pair, read_places]
READING += [repeated, scattered, joined, pointed, paired]


@pytest.mark.parametrize("ask", READING)
@pytest.mark.parametrize("mesh", ["2", "3x2"])
def test_masks_as_indices(tmp_path: Path, ask: Forward, mesh: str) -> None:
    model = Asking(ask)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(found: Tensor, target: Tensor) -> Tensor:
        return (found - target[0, 0]).square().sum()

    batch = usual(), torch.ones(6, 4)
    autopar.compile(
        *(model, batch), mesh=mesh, strategy="data", loss=loss, optimizer=optimizer
    ).save(tmp_path / "build")
    expected = loss(model(batch[0]), batch[1])
    expected.backward()
    optimizer.step()
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        torch.testing.assert_close(trainer.step(batch), expected.detach())
        for name, tensor in trainer.state_dict().items():
            torch.testing.assert_close(tensor, model.state_dict()[name])


def test_a_buffer_itself_is_asked_for() -> None:
    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("stride", torch.tensor(2))

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(x)[:: int(self.stride)]
            return found

    model = Strided()
    expected = model(usual()).detach()
    parallel = autopar.parallelize(model, (usual(),), mesh="1")
    torch.testing.assert_close(parallel(usual()), expected)
    parallel.stride.fill_(3)
    with pytest.raises(InvalidInputError, match=r"was 2 for the example .* and is 3 for this"):
        parallel(usual())


class Handled(TorchFunctionMode):
    """Handles every call of a function of torch as it is."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def handled(model: nn.Module, h: Tensor) -> Tensor:
    with Handled():
        return branch(model, h)


def handled_lot(model: nn.Module, h: Tensor) -> Tensor:
    with Handled():
        return h * 2 if torch.rand(()) > 0.5 else h


def test_lines_are_those_that_call_not_those_that_handle() -> None:
    [assumption] = set(assumed(capture(Asking(handled), (usual(),))))
    assert str(assumption).endswith("(return h * 2 if (h > 100).any() else h + 1) is False")
    with pytest.raises(InvalidInputError) as caught:
        capture(Asking(handled_lot), (usual(),))
    line = inspect.getsourcelines(handled_lot)[1] + 2
    assert f"{Path(__file__).name}:{line}: " in str(caught.value)


def test_a_view_is_asked_for_that_nothing_else_reads() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            large = (x > 100).sum().reshape(1, 1).reshape(1)
            found: Tensor = self.layer(x) + int(large)
            return found

    model = Counting()
    expected = model(usual()).detach()
    parallel = autopar.parallelize(model, (usual(),), mesh="1")
    torch.testing.assert_close(parallel(usual()), expected)
    with pytest.raises(InvalidInputError, match="for this input"):
        parallel(large())
