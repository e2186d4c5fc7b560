"""What a limit of memory makes wait in the host's memory, and where that pays."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from autopar.cost import Cluster, evaluate, memory_timeline
from autopar.cost.links import HostLink
from autopar.ir.memory.transfers import hosted
from autopar.ir.program import Program
from autopar.partition.recompute import DoesNotFit
from autopar.planning.fit import Fitter
from tests.partition.offload.models import assert_trains_alike, compiled

NO_LINK = Cluster.load("cpu")
LINKED = replace(NO_LINK, host_link=HostLink("fast", 1e-6, 2e-11))


@cache
def plain() -> Program:
    return compiled([], cluster=NO_LINK).partitioned


def limits() -> list[int]:
    most = memory_timeline(plain()).peak_bytes
    return [most * part // 20 for part in range(8, 21)]


def test_a_limit_takes_the_state_of_the_optimizer_first() -> None:
    most = memory_timeline(plain()).peak_bytes
    found = compiled(None, cluster=LINKED, memory=most * 9 // 10)
    there = hosted(found.partitioned)
    assert there
    assert all("/" in name for name in there)
    assert memory_timeline(found.partitioned).peak_bytes <= most * 9 // 10
    assert_trains_alike(found, "adam")


def test_more_memory_is_never_slower_and_limits_hold() -> None:
    fitter, fitted = Fitter(plain(), LINKED), []
    for limit in limits():
        try:
            found = fitter.within(limit)
        except DoesNotFit:
            continue
        assert memory_timeline(found.program).peak_bytes <= limit
        assert fitter.added_seconds(limit) == pytest.approx(found.added_seconds)
        fitted.append(found)
    assert len(fitted) > 5
    assert fitted[-1].added_seconds == 0
    assert any("weight" in label for label in fitted[0].offload if "/" not in label)
    for less, more in pairwise(fitted):
        assert more.added_seconds <= less.added_seconds


def test_seconds_are_what_the_evaluator_says() -> None:
    found = Fitter(plain(), LINKED).within(limits()[6])
    before, after = evaluate(plain(), LINKED), evaluate(found.program, LINKED)
    added = after.serialized_seconds - before.serialized_seconds
    assert found.added_seconds == pytest.approx(added)
    assert found.traffic.seconds > 0
    assert after.overlapped_seconds < after.serialized_seconds


def test_nothing_waits_where_the_host_has_no_memory_of_its_own() -> None:
    with pytest.raises(DoesNotFit):
        Fitter(plain(), NO_LINK).within(limits()[6])


def test_nothing_waits_that_the_user_wants_on_the_device() -> None:
    with pytest.raises(DoesNotFit, match="more than the limit"):
        compiled([], cluster=LINKED, memory=limits()[6])


def test_transfers_run_beside_computation() -> None:
    """A bucket comes while another one is in use, and goes while the next one comes."""
    found = Fitter(plain(), LINKED, tuple(p.label for p in plain().signature.inputs if p.shape))
    program = found.within(None).program
    clock = evaluate(program, LINKED)
    assert clock.overlapped_seconds < clock.serialized_seconds - clock.transfer_seconds / 4
