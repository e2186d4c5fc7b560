"""Rows that data select: right for every batch where they are computed apart, else assumed."""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import autopar
from autopar import runtime
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import capture
from autopar.frontend.torch.conditions.counts import Count
from autopar.frontend.torch.step.recipe import Recipe
from autopar.ir.assumptions import Assumption, assumption_ports

Mix = Callable[["Mixture", Tensor, Tensor, Tensor], Tensor]
"""(module, tokens, weights, chosen experts) -> what the experts make of the tokens."""

WIDTH = 4


class Mixture(nn.Module):
    """Experts, and a router that sends each token to some of them."""

    def __init__(self, mix: Mix, experts: int = 3, each: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.number, self.each = experts, each
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 6), nn.SiLU(), nn.Linear(6, WIDTH))
            for _ in range(experts)
        )
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.mix = mix
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        weights, chosen = torch.topk(self.router(x).softmax(-1), self.each, -1)
        return h + self.mix(self, h, weights, chosen)


def added(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    final = torch.zeros_like(h)
    mask = functional.one_hot(chosen, self.number).permute(2, 1, 0)
    for expert in range(self.number):
        at, tokens = torch.where(mask[expert])
        current = h[None, tokens].reshape(-1, h.shape[-1])
        found = self.experts[expert](current) * weights[tokens, at, None]
        final.index_add_(0, tokens, found.to(h.dtype))
    return final


def written(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    final = torch.zeros_like(h)
    for number, expert in enumerate(self.experts):
        tokens, at = torch.where(chosen == number)
        final[tokens] += weights[tokens, at, None] * expert(h[tokens])
    return final


def masked(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    final = torch.zeros_like(h)
    for number, expert in enumerate(self.experts):
        mask = (chosen == number).any(-1)
        flat = mask.view(-1)
        if flat.any():
            share = torch.where(chosen == number, weights, 0.0).sum(-1)
            final[mask] += expert(h[flat]) * share[flat].unsqueeze(1)
    return final


def skipped(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    final = torch.zeros_like(h)
    for number in range(self.number):
        tokens, at = (chosen == number).nonzero(as_tuple=True)
        if tokens.numel() == 0:
            continue
        rows, width = h[tokens].shape
        found = self.experts[number](h[tokens]).view(rows, width)
        final = final.index_add(0, tokens, found * weights[tokens, at].unsqueeze(-1))
    return final


def skipped_in_a_line(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    final = torch.zeros_like(h)
    for number in range(self.number):
        tokens, at = torch.where(chosen == number)
        # fmt: off
        if tokens.numel() == 0: continue  # noqa: E701
        # fmt: on
        found = self.experts[number](h[tokens])
        final.index_add_(0, tokens, found * weights[tokens, at, None])
    return final


def measured(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Asks for a length, in each of the ways in which code does."""
    final = torch.zeros_like(h)
    for number in range(self.number):
        tokens, at = torch.where(chosen == number)
        if len(tokens) == 0:
            continue
        found = self.experts[number](h[tokens])
        final.index_add_(0, tokens, found * weights[tokens, at, None])
    first, _ = torch.where(chosen == 0)
    if not len(first) < 1:
        final[first] += self.enter(h[first])
    second, _ = torch.where(chosen == 1)
    if len(second):
        final[second] += self.enter(h[second])
    third, _ = torch.where(chosen == 2)
    if len(third) > 0:
        final[third] += self.enter(h[third])
    return final


def hit(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    final = torch.zeros_like(h)
    mask = functional.one_hot(chosen, self.number).permute(2, 1, 0)
    hits = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    for expert in hits:
        at, tokens = torch.where(mask[expert].squeeze(0))
        found = self.experts[int(expert[0])](h[tokens]) * weights[tokens, at, None]
        final.index_put_((tokens,), found, accumulate=True)
    return final


def looked_up(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Reads and writes by indices that are computed for rows."""
    order = torch.arange(h.shape[0]).flip(0)
    tokens = torch.nonzero(chosen[:, 0] == 1)[:, 0]
    final = torch.zeros_like(h).index_add(0, order[tokens], h[order[tokens]] * self.scale)
    return final + h[tokens].mean(0) * torch.ones_like(h[:, :1]) if h.shape[0] > 99 else final


def normalized(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Divides, which fails for rows that aren't there, and for those of tokens left out."""
    mask = chosen[:, 0] != 1
    safe = torch.where(mask[:, None], h.abs() + 1, torch.zeros_like(h))
    rows = safe[mask]
    found = self.scale / rows + (rows * self.scale).log() + rows / rows.norm(dim=-1, keepdim=True)
    final = torch.zeros_like(h)
    final[mask] = found * rows.softmax(-1)
    return final


def counted(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Sums and means of rows."""
    rows = h[chosen[:, 0] != 1]
    one = torch.cat([h, h[:1].detach() * 0 + 2])
    always = one[torch.cat([chosen[:, 0] != 1, torch.ones(1, dtype=torch.bool)])]
    return rows.sum(0) + always.mean(0) + always.sum() + h


def emptied(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Writes one value where `torch.where` finds some."""
    kept = torch.ones_like(chosen, dtype=torch.bool)
    kept[torch.where(chosen == 1)] = False
    tall = h.clone()
    tall[torch.where(chosen[:, 0] == 0)[0], 1:3] = 0.5
    return kept.any(-1, keepdim=True) * tall * weights.sum(-1, keepdim=True)


def repeated(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Writes several rows to one place, of which the last one stays and all get a gradient."""
    tokens, at = torch.where(torch.cat([chosen, chosen], 1) == 1)
    final = torch.zeros_like(h)
    final[tokens] = h[tokens] * (at[:, None] + 1)
    return final


def nested(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    final = torch.zeros_like(h)
    for number, expert in enumerate(self.experts):
        mask = (chosen == number).any(-1)
        if mask.any():
            large = mask & (h[:, 0] > 0)
            if large.any():
                final[large] += expert(h[large])
            places = torch.nonzero(chosen == number)
            shares = weights[places[:, 0], places[:, 1]][:, None]
            final.index_add_(0, places[:, 0], shares * h[places[:, 0]])
    return final


def columns(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    mask = h.mean(0) > 0
    final = torch.zeros_like(h)
    final[:, mask] = h[:, mask] * 2
    return final + h[:, mask].sum(1, keepdim=True)


def remade(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Selects by one mask that is written again and again."""
    seen = h.detach()  # Eager torch reads the mask in the backward pass, as it is then.
    mask = chosen[:, 0] == 1
    found = seen[mask].sum(0)
    torch.gt(h[:, 0], 0, out=mask)
    found = found + 2 * seen[mask].sum(0)
    mask.data = h[:, 1] > 0
    return h + found + 3 * seen[mask].sum(0)


def prefixed(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    pair = (2,)
    return h + torch.ones(pair + h[chosen[:, 0] == 1].shape).sum()


def made_ahead(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Computes something of a parameter that only a part uses, and looks at one."""
    ahead, final = self.scale * 2, torch.zeros_like(h)
    rare = (chosen == 0).all(-1) | (chosen[:, 0] == 1)
    if rare.any():
        final[rare] += h[rare] * ahead
    return final + self.scale.detach().norm()


def kept_within(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Goes on with what was there, in a part as behind it."""
    final = h * self.scale
    for number, expert in enumerate(self.experts):
        mask = chosen[:, 0] == number
        if mask.any():
            final[mask] = final[mask] * 2 + expert(final[mask])
    return final


FORMS = [added, written, masked, skipped, skipped_in_a_line, measured, hit, looked_up]
FORMS += [normalized, counted, emptied]
FORMS += [repeated, nested, columns, remade, prefixed, made_ahead, kept_within]


def routed(seed: int, tokens: int = 7) -> Tensor:
    """Returns tokens that differ in where they are sent: some batches all to one expert."""
    noise = torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(seed)).double()
    towards = functional.one_hot(torch.tensor(seed % WIDTH), WIDTH).double()
    return noise * (0.1 if seed % 2 else 2.0) + 4 * towards


def mean_square(found: Tensor, target: Tensor) -> Tensor:
    return (found - target).square().mean()


def assumes(model: nn.Module, *batch: Tensor) -> list[str]:
    program = capture(model, batch).program
    found = [str(Assumption.from_port(port)) for port in assumption_ports(program, program.main)]
    return [each for each in found if "one_hot" not in each]


def check_training(model: nn.Module, folder: Path, mesh: str, strategy: str, steps: int) -> None:
    """Compares steps on batches whose routes differ with those of the module itself."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    batch = (routed(0), routed(100))
    expected = copy.deepcopy(model)
    autopar.compile(
        *(model, batch), mesh=mesh, strategy=strategy, loss=mean_square, optimizer=optimizer
    ).save(folder)
    reference = torch.optim.AdamW(expected.parameters(), lr=0.05, weight_decay=0.1)
    with autopar.load(folder, virtual=True) as trainer:
        for seed in range(steps):
            found = trainer.step((routed(seed), routed(100 + seed)))
            loss = mean_square(expected(routed(seed)), routed(100 + seed))
            reference.zero_grad()
            loss.backward()
            reference.step()
            torch.testing.assert_close(found, loss.detach(), rtol=1e-9, atol=1e-9)
        for name, tensor in trainer.state_dict().items():
            kept = expected.state_dict()[name]
            torch.testing.assert_close(tensor, kept, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_training(tmp_path: Path, form: Mix) -> None:
    """Experts without tokens have no gradient, and AdamW leaves those as they are."""
    model = Mixture(form)
    assert not assumes(model, routed(0))
    check_training(model, tmp_path / "build", "2x2", "fsdp:0,tensor:1", 4)


@pytest.mark.parametrize("form", [added, hit])
def test_training_on_meshes_that_divide_nothing(tmp_path: Path, form: Mix) -> None:
    check_training(Mixture(form), tmp_path / "fsdp", "3x2", "fsdp", 4)
    check_training(Mixture(form), tmp_path / "search", "3x2", "auto", 4)


def padded(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Has a class that no token is of, for which there is no expert."""
    final = torch.zeros_like(h)
    mask = functional.one_hot(chosen, self.number + 1).permute(2, 1, 0)
    for expert in mask.sum(dim=(-1, -2)).gt(0).nonzero():
        at, tokens = torch.where(mask[expert[0]])
        found = self.experts[int(expert[0])](h[tokens]) * weights[tokens, at, None]
        final.index_add_(0, tokens, found)
    return final


def test_positions_where_code_fails_are_assumed_not_to_be_selected(tmp_path: Path) -> None:
    model = Mixture(padded)
    [assumption] = assumes(model, routed(0))
    assert assumption.endswith("(for expert in mask.sum(dim=(-1, -2)).gt(0).nonzero():) is False")
    check_training(model, tmp_path / "build", "2", "data", 3)


def test_the_summary_says_what_is_computed() -> None:
    """All rows cost more than those that are there."""
    compiled = autopar.compile(Mixture(added), (routed(0),), mesh="2", strategy="data")
    line = "at, tokens = torch.where(mask[expert])"
    assert re.search(
        rf"computes all rows that data may select: {Path(__file__).name}:\d+"
        rf" \({re.escape(line)}\), 3 times",
        compiled.summary(),
    )


def test_a_parameter_that_nothing_reads_is_kept(tmp_path: Path) -> None:
    """An expert without tokens isn't decayed, nor moved by its momentum."""
    model = Mixture(masked, experts=4, each=1)
    with torch.no_grad():
        grads = set()
        for seed in range(6):
            chosen = model.router(routed(seed)).argmax(-1)
            grads.add(frozenset(chosen.tolist()))
    assert len(grads) > 1
    check_training(model, tmp_path / "build", "2", "data", 6)


# What falls back to the example's number of rows.


def returned(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    return h.flip(0)[chosen[:, 0] == 1].cumsum(0)[:1].sum(0)


def sorted_rows(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    return h[chosen[:, 0] == 1].sort(0).values[:1].sum(0) + h


def normed(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    rows = h[chosen[:, 0] == 1]
    return h + (rows - rows.amax(0)).sum(0)


def divided(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    rows = h[chosen[:, 0] == 1]
    return h + rows.sum(0) / max(rows.shape[0], 1)


def ranged(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    count, _ = h[chosen[:, 0] == 1].shape
    for _ in range(count):
        h = h + self.scale
    return h


def length(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    return h * len(h[chosen[:, 0] == 1])


def batch_normed(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    rows = functional.batch_norm(h[chosen[:, 0] == 1], None, None, training=True)
    return h + rows.square().sum(0)


def dropped(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    return h + functional.dropout(h[chosen[:, 0] == 1], 0.5).sum(0) * 0


def other_rows(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    final = torch.zeros_like(h)
    final[chosen[:, 0] == 1] = h[chosen[:, 1] != 1][: int((chosen[:, 0] == 1).sum())]
    return final


def counting(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Counts the experts that are hit, in a number."""
    hits, final = 0, torch.zeros_like(h)
    for number, expert in enumerate(self.experts):
        mask = (chosen == number).any(-1)
        if mask.any():
            hits = hits + 1
            final[mask] += expert(h[mask])
    return final / hits


def collecting(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Adds up what isn't of rows."""
    final, total = torch.zeros_like(h), h.new_zeros(())
    for number, expert in enumerate(self.experts):
        mask = (chosen == number).any(-1)
        if mask.any():
            final[mask] += expert(h[mask])
            total = total + self.scale.sum()
    return final * total


def numbered(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Numbers the experts that are hit."""
    final = torch.zeros_like(h)
    mask = functional.one_hot(chosen, self.number).permute(2, 1, 0)
    for at, expert in enumerate(mask.sum((-1, -2)).gt(0).nonzero()):
        _, tokens = torch.where(mask[expert[0]])
        final.index_add_(0, tokens, h[tokens] * (at + 1))
    return final


def broken_off(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    final = torch.zeros_like(h)
    for number in (1, 2, 0):
        mask = (chosen[:, :1] == number).any(-1)
        if mask.any():
            final[mask] += self.experts[number](h[mask])
            break
    return final


def caught(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    rows = h[chosen[:, 0] == 1]
    try:
        return h + rows.sort(0).values.sum()
    except BaseException:
        return h


def carried(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Reads what an earlier expert that is hit left."""
    final, before = torch.zeros_like(h), torch.zeros_like(h[:1])
    for number, expert in enumerate(self.experts):
        mask = (chosen == number).any(-1)
        if mask.any():
            rows = expert(h[mask])
            final[mask] += rows + before
            before = rows.sum(0, keepdim=True)
    return final


def scaled(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Writes to all tokens for each expert that is hit."""
    final = torch.zeros_like(h)
    for number, expert in enumerate(self.experts):
        mask = (chosen == number).any(-1)
        if not mask.any():
            continue
        final[mask] += expert(h[mask])
        final *= 2
    return final


def listed(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    rows = h[chosen[:, 0] == 1]
    return h + rows.sum(0) * [0.5**at for at in range(9)][rows.shape[0]]


def combined(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    return h * math.comb(12, h[chosen[:, 0] == 1].shape[0])


def handed_on(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    return times(h, h[chosen[:, 0] == 1].shape)


def times(h: Tensor, shape: torch.Size) -> Tensor:
    number = shape[0]
    for _ in range(number):
        h = h + 1
    return h


def held(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    rows = h[chosen[:, 0] == 1]
    return h * (2 if 8 in rows.shape else 3)


def by_chance(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Divides rows into as many parts as there are tokens."""
    rows = h[chosen[:, 0] != 0]
    return h + torch.cat([rows, rows], 1).reshape(8, -1).sum(1).abs().sum()


def changed(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Changes all tokens before it writes some, if there are some."""
    final = h * 2
    for number, expert in enumerate(self.experts):
        mask = (chosen == number).any(-1)
        if mask.any():
            final += 1
            final[mask] += expert(h[mask])
    return final


def copied(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Goes on with another tensor if it writes some."""
    final = h * 2
    for number in range(self.number):
        mask = (chosen == number).any(-1)
        if mask.any():
            final = h.clone()
            final[mask] = 0.5
    return final


def replaced(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Adds to another tensor, which takes the place of the first one."""
    final = h * 2
    for number, expert in enumerate(self.experts):
        tokens, _ = torch.where(chosen == number)
        if tokens.numel() == 0:
            continue
        final = h.index_add(0, tokens, expert(h[tokens]))
    return final


def swollen(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Changes all tokens behind what it adds."""
    final = h * 2
    for number, expert in enumerate(self.experts):
        tokens, _ = torch.where(chosen == number)
        if tokens.numel() == 0:
            continue
        final = final.index_add(0, tokens, expert(h[tokens]))
        final += 1
    return final


def overwritten(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Writes rows to as many other places."""
    mask = chosen[:, 0] == 1
    rows, final = h[mask], torch.zeros_like(h)
    mask.copy_(mask.roll(1, 0))
    final[mask] = rows
    return h + final


class AddsOne(torch.autograd.Function):
    """Adds one to gradients, also to those of rows that aren't there."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] + 1


def own_backward(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    tokens = torch.where(chosen[:, 0] == 1)[0]
    rows: Tensor = AddsOne.apply(self.experts[1](h[tokens]))  # type: ignore[no-untyped-call]
    return torch.zeros_like(h).index_add(0, tokens, rows)


def own_backward_of_a_part(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    final = torch.zeros_like(h)
    for number in range(self.number):
        mask = (chosen == number).any(-1)
        if mask.any():
            final[mask] += h[mask] * AddsOne.apply(self.scale)  # type: ignore[no-untyped-call]
    return final


def hooked(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    rows = self.experts[1](h[chosen[:, 0] == 1])
    rows.register_hook(lambda gradient: gradient + 1)
    return h + rows.sum(0)


def tallied(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Counts the experts that are hit in a function, and in an attribute."""
    final, seen = torch.zeros_like(h), list[int]()
    self.hits = 0

    def run(number: int, rows: Tensor) -> Tensor:
        seen.append(number)
        self.hits += 1
        found: Tensor = self.experts[number](rows)
        return found

    for number in range(self.number):
        mask = (chosen == number).any(-1)
        if mask.any():
            final[mask] += run(number, h[mask])
    return final * len(seen) + self.hits


def rebound(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Calls what it made before by another name if it writes some."""
    final, other = h * 2, h * 3
    mask = chosen[:, 0] == 1
    if mask.any():
        final = other
        final[mask] = 0.5
    return final


def swapped(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    one, other = h * 2, torch.zeros_like(h)
    mask = chosen[:, 0] == 1
    if mask.any():
        other[mask] = 1.0
        one, other = other, one
    return one * 2 + other


def taken(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Takes the next expert if it writes some."""
    final, experts = torch.zeros_like(h), iter(self.experts)
    for number in range(self.number):
        mask = chosen[:, 0] == number
        if mask.any():
            expert = next(experts)
            final[mask] += expert(h[mask])
    return final


def counted_deeply(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Counts the experts that are hit in a container within another one."""
    final, state = torch.zeros_like(h), {"hits": [0]}

    def run(number: int, rows: Tensor) -> Tensor:
        state["hits"][0] += 1
        found: Tensor = self.experts[number](rows)
        return found

    for number in range(self.number):
        mask = chosen[:, 0] == number
        if mask.any():
            final[mask] += run(number, h[mask])
    return final * state["hits"][0]


HITS = {"number": 0}


def hit_once_more(rows: Tensor) -> Tensor:
    HITS["number"] += 1
    return rows


def counted_globally(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    HITS["number"], final = 0, torch.zeros_like(h)
    for number in range(self.number):
        mask = chosen[:, 0] == number
        if mask.any():
            final[mask] += hit_once_more(h[mask])
    return final * HITS["number"]


def named(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Hands all arguments over by name."""
    places = torch.nonzero(input=chosen[:, 0] == 1)
    return h + torch.sum(input=h[places[:, 0]], dim=0)


FALLBACKS = [
    carried,
    scaled,
    returned,
    sorted_rows,
    normed,
    divided,
    ranged,
    length,
    batch_normed,
    dropped,
]
FALLBACKS += [other_rows, counting, collecting, numbered, broken_off, caught]
FALLBACKS += [listed, combined, handed_on, held, by_chance, overwritten]
FALLBACKS += [changed, copied, replaced, swollen, tallied]
FALLBACKS += [rebound, swapped, taken, counted_deeply, counted_globally, named]


@pytest.mark.parametrize("form", FALLBACKS)
def test_other_code_assumes_what_the_example_selects(tmp_path: Path, form: Mix) -> None:
    """It is right for batches with the same numbers, and refuses the others."""
    model = Mixture(form)
    example = routed(2, 8)
    assert assumes(model, example)
    assert torch.is_grad_enabled()
    autopar.compile(model, (example,), mesh="1").save(tmp_path / "build")
    found = runtime.run(tmp_path / "build", {"x": example}, virtual=True)["output"]
    torch.testing.assert_close(found, model(example).detach(), rtol=1e-9, atol=1e-9)
    told = 0
    for seed in range(5):
        batch = routed(seed, 8)
        try:
            found = runtime.run(tmp_path / "build", {"x": batch}, virtual=True)["output"]
        except InvalidInputError as error:
            told += Path(__file__).name in str(error)
            continue
        torch.testing.assert_close(found, model(batch).detach(), rtol=1e-9, atol=1e-9)
    assert told


@pytest.mark.parametrize("form", [own_backward, own_backward_of_a_part, hooked])
def test_gradients_that_code_makes_itself_are_those_of_the_example(form: Mix) -> None:
    model = Mixture(form)
    recipe = Recipe(loss=mean_square, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    program = capture(model, (routed(0), routed(1)), recipe).program
    assert assumption_ports(program, program.main)


def test_parallelize_leaves_gradients_out() -> None:
    """Who steps an optimizer himself sees which parameters have no gradient: that is assumed."""
    model = Mixture(masked)
    parallel = autopar.parallelize(copy.deepcopy(model), (routed(2),), mesh="1")
    for seed in (2, 4, 6):
        expected = model(routed(seed))
        try:
            found = parallel(routed(seed))
        except InvalidInputError:
            continue
        torch.testing.assert_close(found, expected)


def test_numbers_of_rows_are_numbers_to_torch_only() -> None:
    def refuse() -> Any:
        raise InvalidInputError("looked at")

    told: list[Count] = []
    count = Count(3, None, lambda answer: answer, refuse, told.append)
    assert isinstance(count, int)
    assert torch.zeros(2, count).shape == (2, 3)
    assert told
    assert [count == 0, count != 0, count > 0, count < 1] == [False, True, True, False]
    assert bool(count)
    uses: list[Callable[[], object]] = [
        lambda: count + 1,
        lambda: 2 * count,
        lambda: [0] * count,
        lambda: float(count),
        lambda: f"{count}",
        lambda: max(count, 2),
        lambda: {count: 1},
        lambda: count == 3,
    ]
    for use in uses:
        with pytest.raises(InvalidInputError, match="looked at"):
            use()


STEPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda rows, w: rows @ w,
    lambda rows, w: torch.relu(rows) + 1,
    lambda rows, w: rows * w[0],
    lambda rows, w: functional.layer_norm(rows, (WIDTH,)),
    lambda rows, w: rows / (rows.square().mean(-1, keepdim=True) + 0.1).sqrt(),
    lambda rows, w: rows.unsqueeze(1).expand(-1, 2, -1).reshape(-1, 2 * WIDTH)[:, :WIDTH],
    lambda rows, w: torch.cat([part.sigmoid() for part in rows.chunk(2, dim=-1)], -1),
    lambda rows, w: rows.view(-1, 2, 2).transpose(1, 2).flatten(1),
    lambda rows, w: rows.softmax(-1) * rows.sum(-1, keepdim=True),
    lambda rows, w: torch.einsum("ij,jk->ik", rows, w),
    lambda rows, w: (1 + rows.abs()).log(),
]


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    steps = [drawn.choice(STEPS) for _ in range(4)]
    back = drawn.choice(("add", "write", "sum"))
    deep = drawn.random() < 0.5

    def form(self: Mixture, h: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        mask = chosen == 1 if deep else chosen[:, 0] == 1
        tokens = torch.where(mask)[0]
        rows = h[tokens]
        for step in steps:
            rows = step(rows, self.enter.weight) + h[tokens]
        if back == "add":
            return torch.zeros_like(h).index_add(0, tokens, rows)
        if back == "write":
            final = h.clone()
            final[tokens] = rows
            return final
        return h + rows.sum(0)

    model = Mixture(form)
    assert not assumes(model, routed(0))
    check_training(model, tmp_path / "build", drawn.choice(("2", "3x2")), "data", 4)
