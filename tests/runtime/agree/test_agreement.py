"""Agreement: ranks that are given different things are all told so, and can go on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import autopar
from autopar.base.errors import InvalidInputError
from autopar.runtime.agree.agreement import Agreement, Offer, coefficient, device_digest
from autopar.runtime.agree.sampling import PERIOD, sampled
from autopar.runtime.agree.sketch import differ_by_rounding, sketched
from tests.runtime.agree.agreeing import (
    ThreadTalk,
    differing_steps,
    divided,
    odd_steps,
    requests,
    said,
    step_out_of_range,
    steps_of_parts,
    steps_that_divide,
    together,
    unchecked_steps,
    wrong_calls,
)
from tests.runtime.job.real import run_ranks
from tests.runtime.programs import LOOP, build, deploy
from tests.runtime.training.steps import LAYOUTS, Reference, batches, training_build

REMEDY = (
    "; every rank needs the global batch, so leave DistributedSampler out; to hand over only each"
    " rank's part of it, pass local=True; check_inputs=False turns the comparison off"
)
DIFFERENT = "InvalidInputError: the ranks were given different batches: "


def test_what_differs_is_refused_on_all_ranks_and_training_goes_on(tmp_path: Path) -> None:
    outcomes = run_ranks(3, differing_steps, training_build(tmp_path / "b", LAYOUTS[3]))
    sampler, one, order, shape, missing, lr, word, local, group, steps, *rest = zip(
        *(steps for steps, _ in outcomes), strict=True
    )
    assert set(sampler) == {f"{DIFFERENT}'x' is not the same on ranks 0, 1, 2, and target{REMEDY}"}
    assert set(one) == {f"{DIFFERENT}'target' of rank 1 is not what the other ranks have{REMEDY}"}
    assert set(order) == {f"{DIFFERENT}'x' of rank 2 is not what the other ranks have{REMEDY}"}
    wrong = "wrong inputs:\n  - input 'x' is f32[5, 4], it must be f32[6, 4]"
    told = f"InvalidInputError: rank 2 was given a wrong batch: {wrong}"
    assert shape == (told, told, f"InvalidInputError: {wrong}")
    assert missing[0].startswith("InvalidInputError: the batch has 1 tensor, the program takes 2")
    assert missing[1] == missing[2]
    assert "rank 0 was given a wrong batch: the batch has 1 tensor" in missing[1]
    assert len(set(lr)) == len(set(group)) == len(set(steps)) == len(set(local)) == 1
    assert "the ranks differ: lr.0 is 0.1 on ranks 0, 2 and 0.2 on rank 1; every" in lr[0]
    assert "rank 1 was given a wrong batch: lr='a': a learning rate is a number" in word[2]
    assert "lr.1 is 0.5 on rank 0 and 0.01 on ranks 1, 2" in group[0]
    assert "steps is 0 on rank 0 and 1 on rank 1 and 2 on rank 2" in steps[0]
    assert "local= is False on rank 0 and True on ranks 1, 2; all ranks bring" in local[0]
    reference = Reference.of_seed()
    for number, losses in enumerate(rest):
        assert float(losses[0]) == pytest.approx(reference.step(batches(8)[number]), rel=1e-5)
    assert len(rest) == 5
    first, *others = (warned for _, warned in outcomes)
    (warning,) = first
    assert warning.startswith("x: what rank 1 brought differs from what the other ranks brought,")
    assert others == [[], []]


def test_what_no_program_takes_is_refused_on_all_ranks(tmp_path: Path) -> None:
    first, second = run_ranks(2, odd_steps, training_build(tmp_path / "b", LAYOUTS[2]))
    kinds = ("the layout sparse_coo", "on the meta device", "the layout _mkldnn", "a nested tensor")
    for at, kind in enumerate(kinds, 1):
        assert first[at].startswith("InvalidInputError: input 'x' is ")
        assert kind in first[at]
        assert "InvalidInputError: rank 0 was given a wrong batch: input 'x' is" in second[at]
    for at, plain in enumerate(("5.0", "None"), 5):
        problem = f"batch[2] is {plain}, the program was compiled without it; what is no tensor"
        assert second[at].startswith(f"InvalidInputError: {problem}")
        assert f"rank 1 was given a wrong batch: {problem}" in first[at]
    reference = Reference.of_seed()
    losses = [float(reference.step(batch)) for batch in batches(2)]
    assert [float(first[0]), float(first[-1])] == pytest.approx(losses)
    assert second[-1] == first[-1]


def test_a_call_that_one_rank_makes_wrongly_is_refused_on_all(tmp_path: Path) -> None:
    first, second = run_ranks(2, wrong_calls, training_build(tmp_path / "b", LAYOUTS[1]))
    takes = "step() takes a batch, lr= and local="
    problems = (
        f"{takes}, and no seed=",
        f"{takes}, and no foo=",
        f"{takes}; no batch is given",
        f"{takes}, and 1 more are given",
        "lr=-1.0: a learning rate is at least 0",
        "lr='1e-3': a learning rate is a number, as 0.001",
        "local='no': give True or False",
    )
    for at, problem in enumerate(problems, 1):
        assert first[at] == f"InvalidInputError: {problem}"
        assert second[at] == f"InvalidInputError: rank 0 was given a wrong batch: {problem}"
    reference = Reference.of_seed()
    losses = [float(reference.step(batch)) for batch in batches(2)]
    assert [float(first[0]), float(first[-1])] == pytest.approx(losses)
    assert second[-1] == first[-1]


def test_an_op_that_fails_on_all_ranks_alike_is_no_failure_of_one(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    autopar.compile(
        model,
        (torch.ones(4, 3), torch.zeros(4)),
        loss=lambda y, labels: torch.nn.functional.cross_entropy(y, labels.long()),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        mesh="x=2",
        strategy="none",
    ).save(tmp_path / "b")
    outcomes = run_ranks(2, step_out_of_range, tmp_path / "b")
    for said_there in outcomes:
        assert "failed" in said_there
        assert "Target 9 is out of bounds" in said_there
    # The one that fails last knows of both, however long it takes to get there.
    assert any("ranks 0, 1 failed alike: aten.nll_loss" in said_there for said_there in outcomes)


def test_ranks_that_read_the_same_part_must_bring_the_same(tmp_path: Path) -> None:
    outcomes = run_ranks(4, steps_of_parts, training_build(tmp_path / "b", LAYOUTS[5]))
    peer, short, right = zip(*outcomes, strict=True)
    assert len(set(peer)) == 1
    assert peer[0].startswith(f"{DIFFERENT}'x' is not the same on ranks 2, 3; with local=True a")
    assert "pass local=True" not in peer[0]
    assert "input 'x' is f32[2, 4], it must be f32[3, 4]" in short[0]
    assert [each.split(": ")[1] for each in short[1:]] == ["rank 0 was given a wrong batch"] * 3
    assert float(right[0]) == pytest.approx(Reference.of_seed().step(batches(1)[0]), rel=1e-5)


def test_the_comparison_can_be_turned_off_but_others_are_waited_for(tmp_path: Path) -> None:
    outcomes = run_ranks(2, unchecked_steps, training_build(tmp_path / "b", LAYOUTS[1]))
    (first, wrong, right), other = outcomes
    assert float(first) > 0
    assert wrong.startswith("InvalidInputError: rank 1 was given a wrong batch: wrong inputs")
    assert (first, right) == (other[0], other[2])


def test_a_wrong_batch_ends_no_program_that_others_wait_in(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)
    example = (torch.ones(6, 4), torch.full((6,), 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = autopar.compile(
        model, example, mesh=2, strategy="data", loss=divided, optimizer=optimizer
    )
    step.save(tmp_path / "b")
    outcomes = run_ranks(2, steps_that_divide, tmp_path / "b")
    for first, second, third, fourth in outcomes:
        assert "is f32[5, 4], it must be f32[6, 4]" in first
        assert third == first
        assert float(fourth) < float(second)
    assert outcomes[0][0].startswith("InvalidInputError: rank 1 was given a wrong batch")


def test_a_wrong_request_is_the_callers_mistake_and_nothing_else(tmp_path: Path) -> None:
    deployment = deploy({"tp": 2}, LOOP, tp=["tp"])
    folder = build(tmp_path / "b", deployment, {"scale": torch.ones(4)})
    first, second = run_ranks(2, requests, folder, torch.ones(3, 4), torch.ones(4))
    right, missing, _, shape, _, short, _, content, _ = first
    assert [first[at] for at in (2, 4, 6, 8)] == [right] * 4
    assert [second[at] for at in (0, 2, 4, 6, 8)] == [right] * 5
    assert (
        missing
        == second[1]
        == ("InvalidInputError: wrong inputs:\n  - input 'c' is missing; it is f32[4]")
    )
    assert "rank 1 was given a wrong batch: wrong inputs:\n  - input 'x' is f32[2, 4]" in shape
    assert second[3].startswith("InvalidInputError: wrong inputs:\n  - input 'x' is f32[2, 4]")
    assert short == second[5]
    assert "nothing is given for c" in short
    assert content == second[7] == f"{DIFFERENT}'x' is not the same on ranks 0, 1{REMEDY}"


def refusals(tensors: dict[int, Tensor], turns: int = 1, size: int = 4, **offer: Any) -> list[str]:
    """Returns what each rank says when some ranks bring another tensor than rank 0."""

    def work(talk: ThreadTalk) -> str:
        agreement = Agreement(talk)
        for turn in range(turns):
            brought = {"x": tensors.get(talk.rank, tensors[0])}
            refusal = agreement.start(Offer(tensors=brought, **offer)).settle()
            if refusal is not None:
                return f"{turn}: {refusal}"
        return ""

    return together(size, work)


@pytest.mark.parametrize("shape", [(400, 1500), (600_000,), (3, 5, 200, 210), (1, 700, 2, 430)])
def test_a_differing_row_of_a_large_tensor_is_found_within_twenty_turns(
    shape: tuple[int, ...],
) -> None:
    tensor = torch.zeros(shape)
    rows = tensor.reshape(-1, shape[-1]) if len(shape) > 1 else tensor.reshape(-1, 100)
    for row in range(0, len(rows), max(1, len(rows) // 9)):
        other = torch.zeros(shape)
        other.view(rows.shape)[row, -1] = 1
        found = refusals({0: tensor, 2: other}, PERIOD)
        assert len(set(found)) == 1
        assert "'x' of rank 2 is not what the other ranks have" in found[0]


def test_samples_are_small_cover_all_and_do_not_depend_on_strides() -> None:
    for shape in [(64, 40_000), (1 << 21,), (7, 11, 13, 999), (2, 3, 4, 5, 6, 7, 8, 9, 4)]:
        tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)
        strided = tensor.transpose(0, -1).contiguous().transpose(0, -1)
        seen = []
        for turn in range(PERIOD):
            parts = torch.cat([part.reshape(-1) for part in sampled(tensor, turn)])
            assert parts.numel() < tensor.numel() / 8
            others = torch.cat([part.reshape(-1) for part in sampled(strided, turn)])
            assert torch.equal(parts, others)
            seen.append(parts)
        assert torch.cat(seen).unique().numel() == tensor.numel()


def test_only_peers_must_bring_the_same_part() -> None:
    parts = {rank: torch.full((2,), rank // 2) for rank in range(4)}

    def offered(parts: dict[int, Tensor], talk: ThreadTalk) -> str:
        peers = tuple(rank for rank in range(4) if rank // 2 == talk.rank // 2)
        offer = Offer(tensors={"x": parts[talk.rank]}, peers=peers)
        return str(Agreement(talk).start(offer).settle())

    assert together(4, lambda talk: offered(parts, talk)) == ["None"] * 4
    parts[3] = torch.full((2,), 7)
    (found,) = set(together(4, lambda talk: offered(parts, talk)))
    assert "'x' is not the same on ranks 2, 3" in found


def test_integers_are_compared_exactly_and_so_are_values() -> None:
    (found,) = set(refusals({0: torch.tensor([1 << 40]), 1: torch.tensor([(1 << 40) + 1])}))
    assert "'x' of rank 1 is not" in found

    def seeds(talk: ThreadTalk) -> str:
        return str(Agreement(talk).start(Offer(values={"seed": str(talk.rank // 2)})).settle())

    def unlike(talk: ThreadTalk) -> str:
        return str(Agreement(talk, check_inputs=talk.rank > 0).start(Offer()).settle())

    (found,) = set(together(3, unlike))
    assert "check_inputs is False on rank 0 and True on ranks 1, 2" in found
    (found,) = set(together(4, seeds))
    assert found.startswith("the ranks differ: seed is 0 on ranks 0, 1 and 1 on ranks 2, 3; every")


def test_after_a_warning_floats_are_still_compared_now_and_then() -> None:
    near, far = torch.ones(9), torch.ones(9)
    near[4] += 1e-7
    far[4] = 2

    def work(talk: ThreadTalk) -> int | str:
        agreement = Agreement(talk)
        for turn in range(2 * PERIOD):
            mine = torch.ones(9) if talk.rank else (near if turn < 5 else far)
            refusal = agreement.start(Offer(tensors={"x": mine})).settle()
            if refusal is not None:
                return turn
        return -1

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert together(3, work) == [PERIOD] * 3
    assert len(caught) == 1


def test_after_a_warning_all_of_a_large_tensor_gets_its_turn() -> None:
    """In 20 of the calls that compare floats, as in 20 of all calls before it."""
    size = 1 << 19
    near, far = torch.ones(size), torch.ones(size)
    near += 1e-7
    far[: size // PERIOD] = 2
    rows = sampled(torch.arange(size, dtype=torch.int32), 0)[0].flatten()
    far[rows] = 1  # which the first sample doesn't see

    def work(talk: ThreadTalk) -> int:
        agreement = Agreement(talk)
        for turn in range(PERIOD * PERIOD):
            mine = torch.ones(size) if talk.rank else (far if turn else near)
            if agreement.start(Offer(tensors={"x": mine})).settle() is not None:
                return turn // PERIOD
        return -1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert together(2, work) == [1] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rounding_is_told_from_other_values(dtype: torch.dtype) -> None:
    drawn = torch.Generator().manual_seed(0)
    exact = torch.randn(200, 300, dtype=torch.float64, generator=drawn)
    noise = torch.rand(200, 300, dtype=torch.float64, generator=drawn) - 0.5
    tensor = exact.to(dtype)
    row, special = tensor.clone(), tensor.clone()
    row[7] = tensor[8]
    special[3, 3] = torch.nan
    elsewhere = tensor.clone()
    elsewhere[3, 4] = torch.nan

    def alike(one: Tensor, other: Tensor) -> bool:
        return differ_by_rounding(sketched([one], 64), sketched([other], 64), dtype)

    assert alike(tensor, (exact * (1 + noise * torch.finfo(dtype).eps)).to(dtype))
    assert alike(special, special.clone())
    for other in (row, tensor.roll(1, 0), tensor.roll(1, 1), special, -tensor, tensor * 1.1):
        assert not alike(tensor, other)
    assert not alike(special, elsewhere)


def test_coefficients_of_peers_add_up_to_zero() -> None:
    for peers in (range(4096), (3, 9), (1, 2, 5)):
        found = [coefficient(rank, peers) for rank in peers]
        assert sum(found) % (1 << 64) == 0
        assert len(set(found)) == len(found)
    assert coefficient(3, (3,)) == 0


def test_digests_for_accelerators_see_values_signs_and_places() -> None:
    tensor = torch.arange(1.0, 1001.0)
    before = device_digest(tensor)
    assert device_digest(tensor.clone()) == before
    others = [-tensor, tensor.roll(1), tensor.roll(2), tensor + 1e-4, tensor.flip(0)]
    swapped = tensor.clone()
    swapped[[1, 3]] = -swapped[[1, 3]]
    found = {int(device_digest(other)) for other in (*others, swapped)}
    assert len(found) == 6
    assert int(before) not in found
    assert device_digest(torch.ones(3, dtype=torch.bool)) != device_digest(torch.ones(3) > 2)


def test_one_process_has_nobody_to_agree_with() -> None:
    refusal = InvalidInputError("wrong")
    assert Agreement().start(Offer(refusal)).settle() is refusal
    assert Agreement().start(Offer(tensors={"x": torch.ones(2)})).settle() is None
    assert said(float, "1") == "1.0"
