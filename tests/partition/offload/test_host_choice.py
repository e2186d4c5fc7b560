"""Who updates what waits in the host's memory: whoever is predicted to take less time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from autopar.cost import Cluster, evaluate, memory_timeline
from autopar.cost.links import HostLink
from autopar.ir.memory.transfers import DEVICE, EITHER, HOST, is_on_host
from autopar.ir.program import Program
from autopar.partition.recompute import DoesNotFit
from autopar.planning.fit import Fitter
from tests.partition.offload.models import LAYERS, assert_trains_alike, compiled

CPU = Cluster.load("cpu")
LINK = HostLink("link", 1e-6, 2e-11)
SLOW, MIDDLE, FAST = (
    replace(CPU, host_link=LINK, host_memory_bytes_per_second=rate) for rate in (1e9, 1.2e10, 2e11)
)
HOSTS = (SLOW, MIDDLE, FAST)


@cache
def plain() -> Program:
    return compiled([], cluster=CPU).partitioned


def labels(*roles: str) -> tuple[str, ...]:
    ports = plain().signature.inputs
    return tuple(port.label for port in ports if port.role in roles and port.shape)


WAITING = (labels("optimizer_state"), labels("optimizer_state", "parameter"))


@pytest.mark.parametrize("names", WAITING, ids=len)
@pytest.mark.parametrize("host", HOSTS, ids=str)
def test_the_faster_one_updates(host: Cluster, names: tuple[str, ...]) -> None:
    seconds = {
        update: Fitter(plain(), host, names, update=update).within(None).added_seconds
        for update in (EITHER, HOST, DEVICE)
    }
    assert seconds[EITHER] <= min(seconds[HOST], seconds[DEVICE])


def test_a_slow_host_updates_nothing_and_a_fast_one_all() -> None:
    weights = {f"{at}.weight" for at in range(0, 2 * LAYERS, 2)}
    state, everything = WAITING
    for host, names, expected in (
        (SLOW, state, set()),
        # To send less of a bias doesn't pay for what an op of the host takes to begin.
        (FAST, state, weights),
        (FAST, everything, weights | {each.replace("weight", "bias") for each in weights}),
    ):
        assert {*Fitter(plain(), host, names).within(None).traffic.updated} == expected


@pytest.mark.parametrize("names", WAITING, ids=len)
@pytest.mark.parametrize("update", [EITHER, HOST, DEVICE])
@pytest.mark.parametrize("host", HOSTS, ids=str)
def test_seconds_are_what_the_evaluator_says(
    host: Cluster, update: str, names: tuple[str, ...]
) -> None:
    found = Fitter(plain(), host, names, update=update).within(None)
    before, after = evaluate(plain(), host), evaluate(found.program, host)
    added = after.serialized_seconds - before.serialized_seconds
    assert found.added_seconds == pytest.approx(added)
    assert found.traffic.on_host.host == pytest.approx(after.host_seconds)
    assert found.traffic.transfer_seconds == pytest.approx(after.transfer_seconds)


@pytest.mark.parametrize("host", HOSTS, ids=str)
@pytest.mark.parametrize("update", [EITHER, HOST])
def test_more_memory_is_never_slower(host: Cluster, update: str) -> None:
    most = memory_timeline(plain()).peak_bytes
    fitter, fitted = Fitter(plain(), host, update=update), []
    for limit in (most * part // 20 for part in range(8, 21)):
        try:
            found = fitter.within(limit)
        except DoesNotFit:
            continue
        assert memory_timeline(found.program).peak_bytes <= limit
        assert fitter.added_seconds(limit) == pytest.approx(found.added_seconds)
        fitted.append(found)
    assert len(fitted) > 5
    assert fitted[-1].added_seconds == 0
    for less, more in pairwise(fitted):
        assert more.added_seconds <= less.added_seconds


def test_a_limit_lets_the_host_update() -> None:
    most = memory_timeline(plain()).peak_bytes
    found = compiled(None, cluster=FAST, memory=most * 8 // 10, update=EITHER)
    assert any(map(is_on_host, found.partitioned.main.ops))
    assert memory_timeline(found.partitioned).peak_bytes <= most * 8 // 10
    assert_trains_alike(found, "adam")


def test_the_host_works_beside_the_link() -> None:
    names = WAITING[1]
    found = evaluate(Fitter(plain(), MIDDLE, names, update=HOST).within(None).program, MIDDLE)
    assert found.host_seconds > 0
    beside = min(found.host_seconds, found.transfer_seconds)
    assert found.overlapped_seconds < found.serialized_seconds - beside / 4
