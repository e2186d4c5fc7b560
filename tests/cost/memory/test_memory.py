"""What memory a program is said to take, on programs small enough to count by hand."""

from __future__ import annotations

from autopar.cost import CUDA, Cluster, memory_timeline
from autopar.cost.memory.buffers import Execution
from autopar.ir.memory.strides import dense, elementwise, reshaped
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.partition import Partition

TRAINING = """
program "" serial
func main {
  parameter %w: f32[8, 8]
  input %x: f32[4, 8]
  %h: f32[4, 8] = aten.mm.default(self=%x, mat2=%w)
  %y: f32[4, 8] = aten.tanh.default(self=%h)
  %loss: f32[] = aten.sum.default(self=%y)
  %g: f32[4, 8] = aten.tanh_backward.default(grad_output=%x, output=%y) phase=backward
  %t: f32[8, 4] = aten.t.default(self=%x) phase=backward
  %d: f32[8, 8] = aten.mm.default(self=%t, mat2=%g) phase=backward
  %n: f32[8, 8] = aten.sub.Tensor(self=%w, other=%d) phase=update
  alias %n -> %w
  return %loss, %n
}
"""
W, X = 8 * 8 * 4, 4 * 8 * 4


def program(text: str) -> Program:
    return parse_program(text)


def test_what_each_op_takes_and_leaves() -> None:
    found = memory_timeline(program(TRAINING))
    stored = W + X
    assert found.stored_bytes == stored
    assert found.at_bytes == (
        stored + X,  # h
        stored + 2 * X,  # h, y
        stored + X + 4,  # y, loss
        stored + 2 * X + 4,  # y, loss, g
        stored + X + 4,  # g, loss; t is a view of x
        stored + X + W + 4,  # g, d, loss
        stored + W + 4,  # d, loss; n is written over w
    )
    assert found.after_bytes[-1] == stored + 4
    assert found.lifetimes.ops[found.peak_at].results == ("d",)


def test_what_is_saved_for_the_backward_pass() -> None:
    found = memory_timeline(program(TRAINING))
    assert found.saved_bytes == X
    at_peak = found.breakdown_bytes()
    assert at_peak["saved_activations"] == 0
    assert at_peak["parameters"] == W
    assert sum(at_peak.values()) == found.peak_bytes


def test_new_content_takes_memory_where_it_is_not_written_in_place() -> None:
    apart = memory_timeline(program(TRAINING), execution=Execution(in_place=False))
    assert apart.after_bytes[-1] == 2 * W + X + 4


def test_an_allocator_rounds() -> None:
    found = memory_timeline(program(TRAINING), allocator=CUDA)
    assert found.stored_bytes == 2 * 512
    assert found.peak_bytes == 5 * 512


HEADS = """
program "" serial
func main {
  input %x: f32[2, 6, 4, 8]
  %p: f32[2, 4, 6, 8] = aten.permute.default(self=%x, dims=[0, 2, 1, 3])
  %v: f32[2, 4, 48] = aten.view.default(self=%p, size=[2, 4, 48])
  %s: f32[2, 4, 6, 8] = aten.view.default(self=%v, size=[2, 4, 6, 8])
  return %s
}
"""


def test_a_view_of_a_permuted_tensor_is_a_copy_and_one_of_that_is_not() -> None:
    found = memory_timeline(program(HEADS))
    nbytes = 2 * 6 * 4 * 8 * 4
    assert found.at_bytes == (nbytes, 2 * nbytes, 2 * nbytes)


def test_reshapes_that_strides_allow() -> None:
    transposed = (1, 4)  # of [4, 6]
    assert reshaped((6, 4), dense((6, 4)), (24,)) == (1,)
    assert reshaped((4, 6), transposed, (24,)) is None
    assert reshaped((4, 6), transposed, (4, 2, 3)) == (1, 12, 4)
    assert reshaped((2, 1, 3), (3, 3, 1), (6, 1)) == (1, 1)
    assert reshaped((), (), (1, 1)) == (1, 1)


def test_results_lie_as_operands_do() -> None:
    transposed = (1, 4)
    assert elementwise((4, 6), [((4, 6), transposed), ((4, 6), transposed)]) == transposed
    assert elementwise((4, 6), [((4, 6), transposed), ((6,), (1,))]) == transposed
    assert elementwise((4, 6), [((4, 6), dense((4, 6))), ((4, 6), transposed)]) == (6, 1)


ROWS = """
program "" serial
mesh dp=2, tp=4
func main {
  parameter %w: f32[10@tp, 1000]
  input %x: f32[1000, 4@dp]
  %y: f32[10@tp, 4@dp] = aten.mm.default(self=%w, mat2=%x) {m: 10@tp, n: 4@dp}
  return %y
}
"""


def test_a_part_counts_with_its_bytes_and_not_as_a_share() -> None:
    """A rank holds the bytes of its blocks: of 10 rows over 4 ranks 3, not a quarter."""
    split = Partition(Cluster.load("cpu"))(program(ROWS))
    x, row = 1000 * 2 * 4, 1000 * 4
    assert memory_timeline(split).peak_bytes == 3 * row + x + 3 * 2 * 4
    assert memory_timeline(split, {"tp": 3}).peak_bytes == row + x + 2 * 4


SENT = """
program "" partitioned
mesh dp=2
func main {
  input %x: f32[1024, 1024]
  %g: f32[1024, 1024] = aten.tanh.default(self=%x)
  %s: f32[512, 1024] = comm.reduce_scatter(self=%g, dim=0, monoid="sum", axes=["dp"])
  %a: f32[4] = aten.full.default(size=[4], fill_value=0, dtype=f32)
  %r: f32[512, 1024] = aten.tanh.default(self=%s)
  return %r, %a
}
"""


def test_what_a_scattered_sum_sends_stays_until_its_result_is_read() -> None:
    found = memory_timeline(program(SENT))
    whole = 1024 * 1024 * 4
    sending = 3 * whole  # x, g, and where the others' blocks arrive
    assert found.at_bytes[1:3] == (sending, sending + 16)
    # Then g is free, the blocks are added up, and only then are they free.
    assert found.at_bytes[3] == sending + 16
    assert found.peak_at == 2
    assert found.breakdown_bytes()["communication"] == whole
    assert found.after_bytes[3] == whole + whole // 2 + 16
    native = memory_timeline(program(SENT), execution=Execution(backend="nccl"))
    assert native.at_bytes[2] == whole + whole + whole // 2 + 16


def test_each_member_sends_as_many_bytes_as_the_block_has_that_is_summed() -> None:
    """Of 5 rows the first of 2 members sums up 3, so 3 arrive from each."""
    uneven = SENT.replace("[1024,", "[5,").replace("[512,", "[3,")
    row = 1024 * 4
    assert memory_timeline(program(uneven)).at_bytes[1] == 5 * row + 5 * row + 2 * 3 * row
