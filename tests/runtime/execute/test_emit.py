"""The emitter: generated code that frees values, finds the failing op, and compiles."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.ir.text import parse_program
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.locate import failing_op
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.stepper import step
from autopar.runtime.kernels.table import Kernel, kernel
from tests.runtime.programs import LOOP_SERIAL

CHAIN = """
program "chain" serial
func main {
  input %x: f32[4]
  %a: f32[4] = aten.neg.default(self=%x)
  %b: f32[4] = call(callee="half", operands=[%a])
  %c: f32[4] = aten.neg.default(self=%b)
  %d: f32[4] = aten.neg.default(self=%c)
  return %d
}
func half {
  input %x: f32[4]
  %u: f32[4] = aten.neg.default(self=%x)
  %v: f32[4] = aten.neg.default(self=%u)
  return %v
}
"""


def module_of(text: str, find_kernel: Callable[[str], Kernel] = kernel) -> fx.GraphModule:
    return emit(specialize(parse_program(text), {}), {}, find_kernel=find_kernel)


def live_negations(run: Callable[[fx.GraphModule], None]) -> int:
    """Returns how many results of `neg` were alive at most, the one being made not counted."""
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    peak = 0

    def neg(self: Tensor) -> Tensor:
        nonlocal peak
        gc.collect()
        peak = max(peak, len(alive))
        result = torch.neg(self)
        alive.add(result)
        return result

    def find_kernel(kind: str) -> Kernel:
        return neg if kind == "aten.neg.default" else kernel(kind)

    run(module_of(CHAIN, find_kernel))
    return peak


def test_generated_code_drops_values_after_their_last_use() -> None:
    # Only a neg's own operand is alive, also within a call.
    assert live_negations(lambda m: m.forward(torch.ones(4))) == 1


def test_stepping_drops_values_after_their_last_use() -> None:
    def run(module: fx.GraphModule) -> None:
        with pytest.raises(StopIteration):
            next(step(module, (torch.ones(4),), None))

    assert live_negations(run) == 1


def test_inputs_are_dropped_after_their_last_use() -> None:
    code = module_of(CHAIN).code
    assert "(x);  x = None" in code


FAILING = """
program "failing" serial
func main {
  input %x: f32[4, 4]
  %a: f32[4, 4] = aten.neg.default(self=%x)
  %b: f32[4, 4], %s: f32[2] =
    repeat(body="inner", trip=2, carried=[%a], sliced=[], invariant=[])
  return %b
}
func inner {
  input %x: f32[4, 4]
  %u: f32[4, 4] = aten.neg.default(self=%x) loc("model.py", 11)
  %v: f32[4, 4] = aten.mm.default(self=%u, mat2=%u) loc("model.py", 12)
  %t: f32[] = aten.sum.default(self=%v)
  return %v, %t
}
"""


def test_the_failing_op_is_found_within_loops(capfd: pytest.CaptureFixture[str]) -> None:
    module = module_of(FAILING)
    with pytest.raises(RuntimeError) as caught:
        module.forward(torch.ones(4, 5))
    op = failing_op(caught.value)
    assert op is not None
    assert (op.kind, op.loc.line) == ("aten.mm.default", 12)
    assert capfd.readouterr().err == ""


def test_an_error_elsewhere_is_no_ops() -> None:
    assert failing_op(ValueError("no traceback")) is None


def test_compiled_code_gives_the_same() -> None:
    module = module_of(LOOP_SERIAL)
    torch.manual_seed(0)
    inputs = (torch.randn(3, 4), torch.randn(4), torch.randn(4))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(*inputs), module.forward(*inputs), strict=True):
        assert torch.equal(found, expected)


def test_several_results_and_keyword_arguments() -> None:
    module = module_of("""
        input %x: f32[2, 4]
        %v: f32[2, 2], %i: i64[2, 2] = aten.topk.default(self=%x, k=2, dim=1)
        %p: f32[2, 4] = aten.softmax.int(self=%x, dim=1, dtype=f32)
        %a: f32[1, 4], %b: f32[1, 4] = aten.split.Tensor(self=%x, split_size=1)
        return %v, %i, %p, %b
    """)
    x = torch.tensor([[1.0, 4, 2, 3], [8, 5, 6, 7]])
    values, indices, soft, last = module.forward(x)
    assert values.tolist() == [[4, 3], [8, 7]]
    assert indices.tolist() == [[1, 3], [0, 3]]
    assert torch.equal(soft, x.softmax(1))
    assert last.tolist() == [[8, 5, 6, 7]]


def test_a_list_of_one_tensor_is_taken_apart() -> None:
    module = module_of("""
        input %x: f32[2, 4]
        %a: f32[2, 4] = aten.split.Tensor(self=%x, split_size=2)
        return %a
    """)
    (found,) = module.forward(torch.ones(2, 4))
    assert found.shape == (2, 4)


def test_names_that_are_no_identifiers() -> None:
    module = module_of("""
        input %"in put/0": f32[2]
        %1: f32[2] = aten.neg.default(self=%"in put/0")
        %class: f32[2] = aten.neg.default(self=%1)
        return %class
    """)
    assert module.forward(torch.ones(2))[0].tolist() == [1, 1]


def test_what_cannot_be_emitted_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match=r"^m.py:3: op aten.nonsense.default: .*no such op"):
        module_of(
            "input %x: f32[2]\n"
            '%y: f32[2] = aten.nonsense.default(self=%x) loc("m.py", 3)\nreturn %y'
        )
    with pytest.raises(RuntimeFailure, match="has no function 'f'"):
        module_of('input %x: f32[2]\n%y: f32[2] = call(callee="f", operands=[%x])\nreturn %y')
    with pytest.raises(RuntimeFailure, match=r"group 'g'.*not in"):
        module_of(
            "input %x: f32[2]\n"
            '%y: f32[2] = comm.all_reduce(self=%x, monoid="sum", group="g")\nreturn %y'
        )
