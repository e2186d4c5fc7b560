"""Seconds of a rank's program: a sum, and a schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.cost import Cluster, evaluate
from autopar.ir.text import parse_program

SUMS = """
program "" partitioned
mesh dp=8
func main {
  input %x: bf16[4096, 4096]
  %a: bf16[4096, 4096] = aten.mm.default(self=%x, mat2=%x)
  %s: bf16[4096, 4096] = comm.all_reduce(self=%a, monoid="sum", axes=["dp"])
  %b: bf16[4096, 4096] = aten.mm.default(self=%x, mat2=%x)
  %v: bf16[16777216] = aten.view.default(self=%b, size=[16777216])
  %c: bf16[4096, 4096] = aten.add.Tensor(self=%s, other=%b)
  return %c, %v
}
"""


def test_sums_run_beside_what_does_not_wait_for_them() -> None:
    found = evaluate(parse_program(SUMS), Cluster.load("h100"))
    product, total, other, view, add = found.costs
    assert product == other
    assert product.flops == 2 * 4096**3
    assert total.communicated_bytes == 2 * 4096**2
    assert total.compute_seconds == view.seconds == 0
    alone = product.seconds + total.seconds + other.seconds + add.seconds
    assert found.serialized_seconds == pytest.approx(alone)
    beside = product.seconds + max(total.seconds, other.seconds) + add.seconds
    assert found.overlapped_seconds == pytest.approx(beside)


ON_HOST = """
program "" partitioned
func main {
  input %state: f32[4096, 4096] optimizer_state
  input %x: f32[4096, 4096]
  %g: f32[4096, 4096] = aten.mm.default(self=%x, mat2=%x)
  %g.sent: f32[4096, 4096] = autopar.offload(self=%g)
  %other: f32[4096, 4096] = aten.mm.default(self=%x, mat2=%x)
  %g.host: f32[4096, 4096] = autopar.end_offload(self=%g.sent, of=%g)
  %new: f32[4096, 4096] = aten.add.Tensor(self=%state, other=%g.host) plan(place=host)
  %new.coming: f32[4096, 4096] = autopar.reload(self=%new)
  %new.back: f32[4096, 4096] = autopar.end_reload(self=%new.coming)
  %last: f32[4096, 4096] = aten.add.Tensor(self=%other, other=%new.back)
  alias %new -> %state
  return %last, %new
}
"""


@pytest.mark.parametrize("rate", [61e9, 1e12])
def test_the_host_computes_beside_what_the_device_was_told_before(rate: float) -> None:
    cluster = replace(Cluster.load("h100"), host_memory_bytes_per_second=rate)
    found = evaluate(parse_program(ON_HOST), cluster)
    product, down, other, _, host, up, _, last = (each.seconds for each in found.costs)
    assert found.host_seconds == host == pytest.approx(1e-5 + 3 * 4 * 4096**2 / rate)
    assert found.costs[4].compute_seconds == found.costs[4].moved_bytes == 0
    assert found.serialized_seconds == pytest.approx(product + down + other + host + up + last)
    # It begins once its operand is there, though the device computes something else.
    beside = product + max(other, down + host) + up + last
    assert found.overlapped_seconds == pytest.approx(beside)
    assert found.clock.begin_seconds[4] == pytest.approx(product + down)


GATHER = """
program "" partitioned
mesh dp=8
func main {
  input %x: f32[512, 4096]
  %a: f32[4096, 4096] = comm.all_gather(self=%x, dim=0, size=4096, axes=["dp"])
  %s: f32[512, 4096] = comm.reduce_scatter(self=%a, dim=0, monoid="sum", axes=["dp"])
  return %s
}
"""


def test_a_gather_is_priced_on_the_whole_tensor_and_so_is_a_scattered_sum() -> None:
    """An all_gather of n pieces moves n - 1 of them to each device: not a piece."""
    gathered, scattered = evaluate(parse_program(GATHER), Cluster.load("h100")).costs
    whole = 4096 * 4096 * 4
    assert gathered.communicated_bytes == scattered.communicated_bytes == whole
    link = Cluster.load("h100").links[0]
    assert gathered.communication_seconds >= whole * 7 / 8 * link.beta_seconds_per_byte
