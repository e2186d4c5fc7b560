"""What a training program writes in place, and what it must not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autopar.base.errors import Loc
from autopar.ir.assumptions import Assumption
from autopar.ir.memory.updates import plan_writes
from autopar.ir.program import ASSUMPTION
from autopar.ir.text import parse_program
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.updates import Abandoned, InPlace
from autopar.runtime.kernels.table import kernel

KEEP = InPlace(lambda loss, refusal: None)
W = torch.tensor([1.0, 2.0, 3.0])
X = torch.tensor([0.5, -1.0, 2.0])

HEAD = "parameter %w: f32[3]\ninput %x: f32[3]\n"
LOSS = "%loss: f32[] = aten.sum.default(self=%h)\n"

CASES = {
    "written by a copy": f"""{HEAD}
        %h: f32[3] = aten.mul.Tensor(self=%w, other=%x)
        {LOSS}
        %n: f32[3] = aten.sub.Tensor(self=%x, other=%w) phase=update
        alias %n -> %w
        return %loss, %n""",
    "written by the op itself": f"""{HEAD}
        %h: f32[3] = aten.mul.Tensor(self=%w, other=%x)
        {LOSS}
        %n: f32[3] = aten.sub.Tensor(self=%w, other=%x) phase=update
        alias %n -> %w
        return %loss, %n""",
    "read after its new content is known": f"""{HEAD}
        %h: f32[3] = aten.mul.Tensor(self=%w, other=%x)
        {LOSS}
        %n: f32[3] = aten.sub.Tensor(self=%w, other=%x) phase=update
        %v: f32[3, 1] = aten.unsqueeze.default(self=%w, dim=1)
        %late: f32[3, 1] = aten.neg.default(self=%v)
        alias %n -> %w
        return %loss, %late, %n""",
    "returned as it was": f"""{HEAD}
        %h: f32[3] = aten.mul.Tensor(self=%w, other=%x)
        {LOSS}
        %v: f32[1, 3] = aten.unsqueeze.default(self=%w, dim=0)
        %n: f32[3] = aten.sub.Tensor(self=%w, other=%x) phase=update
        alias %n -> %w
        return %loss, %v, %n""",
    "an operand twice": f"""{HEAD}
        %h: f32[3] = aten.mul.Tensor(self=%w, other=%x)
        {LOSS}
        %f: f32[3] = aten.flip.default(self=%w, dims=[0])
        %v: f32[3] = aten.view.default(self=%w, size=[3])
        %n: f32[3] = aten.mul.Tensor(self=%w, other=%v) phase=update
        alias %n -> %w
        return %loss, %f, %n""",
    "swapped": f"""{HEAD}buffer %b: f32[3]
        %h: f32[3] = aten.mul.Tensor(self=%w, other=%b)
        {LOSS}
        %n: f32[3] = aten.view.default(self=%w, size=[3]) phase=update
        %m: f32[3] = aten.view.default(self=%b, size=[3]) phase=update
        alias %n -> %b
        alias %m -> %w
        return %loss, %n, %m""",
    "known before the loss": f"""{HEAD}buffer %b: f32[3]
        %n: f32[3] = aten.add.Tensor(self=%b, other=%x)
        %h: f32[3] = aten.mul.Tensor(self=%w, other=%b)
        {LOSS}
        alias %n -> %b
        return %loss, %n""",
    "a fused step": f"""{HEAD}buffer %m: f32[3]
        %h: f32[3] = aten.mul.Tensor(self=%w, other=%x)
        {LOSS}
        %lr: f32[] = aten.full.default(size=[], fill_value=0.5)
        %n: f32[3], %g: f32[3], %o: f32[3] = aten._fused_sgd.tensor_lr(self=[%w], grads=[%x],
          momentum_buffer_list=[%m], weight_decay=0.0, momentum=0.9, lr=%lr, dampening=0.0,
          nesterov=false, maximize=false, is_first_step=false) phase=update
        alias %n -> %w
        alias %o -> %m
        return %loss, %n, %o""",
    "neighbours of other kinds": f"""{HEAD}buffer %b: f32[3]
        %h: f32[3] = aten.mul.Tensor(self=%w, other=%x)
        {LOSS}
        %n: f32[3] = aten.add.Tensor(self=%b, other=1) phase=update
        %m: f32[3] = aten.lerp.Scalar(self=%w, end=%x, weight=0.5) phase=update
        alias %n -> %b
        alias %m -> %w
        return %loss, %n, %m""",
    "an input as the loss": """parameter %w: f32[3]
        input %x: f32[]
        %n: f32[3] = aten.sub.Tensor(self=%w, other=%x) phase=update
        alias %n -> %w
        return %x, %n""",
    "a loss that nothing computes, and no update": "input %x: f32[]\nreturn %x",
}


@pytest.mark.parametrize("case", CASES)
def test_writing_in_place_changes_no_result(case: str) -> None:
    program = parse_program(CASES[case])
    values = program.main.values
    given = {
        name: (W if name == "w" else X if values[name].shape else X[0]).clone()
        for name in program.main.inputs
    }
    expected = emit(program, {})(*(tensor.clone() for tensor in given.values()))
    found = emit(program, {}, in_place=KEEP)(*given.values())
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
    untouched = X if given["x"].ndim else X[0]
    assert torch.equal(given["x"], untouched), "an input that the program doesn't update"


@pytest.mark.parametrize(
    ("case", "mutations", "copies"),
    [
        ("written by a copy", 0, 1),
        ("written by the op itself", 1, 0),
        ("read after its new content is known", 0, 1),
        ("returned as it was", 0, 0),
        ("an operand twice", 0, 1),
        ("swapped", 0, 0),
        ("known before the loss", 0, 1),
        ("a fused step", 1, 0),
        ("neighbours of other kinds", 2, 0),
    ],
)
def test_memory_is_written_as_directly_as_it_may(case: str, mutations: int, copies: int) -> None:
    writes = plan_writes(parse_program(CASES[case]))
    assert len(writes.mutations) == mutations
    assert sum(map(len, writes.after.values())) == copies


def test_a_gradient_that_is_asked_for_is_not_written_to() -> None:
    program = parse_program(CASES["a fused step"].replace("return %loss", "return %loss, %x"))
    (mutation,) = plan_writes(program).mutations.values()
    assert not mutation.copied
    scaled = "is_first_step=false, grad_scale=%lr"
    program = parse_program(
        CASES["a fused step"]
        .replace("return %loss", "return %loss, %x")
        .replace("is_first_step=false", scaled)
    )
    (mutation,) = plan_writes(program).mutations.values()
    assert mutation.copied == {"x"}


def test_steps_of_several_parameters_are_one_call() -> None:
    """But one that reads what another wrote comes after it."""
    names = ("a", "b", "c")
    lines = [f"parameter %{name}: f32[3]" for name in names]
    lines += ["input %x: f32[3]", "%loss: f32[] = aten.sum.default(self=%x)"]
    lines += ["%lr: f32[] = aten.full.default(size=[], fill_value=0.5)"]
    for name, gradient in zip(names, ("x", "x", "b.new"), strict=True):
        lines.append(
            f"%{name}.new: f32[3], %{name}.g: f32[3] = aten._fused_sgd.tensor_lr(self=[%{name}],"
            f" grads=[%{gradient}], momentum_buffer_list=[], weight_decay=0.0, momentum=0.0,"
            " lr=%lr, dampening=0.0, nesterov=false, maximize=false, is_first_step=false)"
            f" phase=update\nalias %{name}.new -> %{name}"
        )
    program = parse_program("\n".join([*lines, "return %loss, %a.new, %b.new, %c.new"]))
    given = [W.clone(), W * 2, W * 3, X]
    expected = emit(program, {})(*(tensor.clone() for tensor in given))
    module = emit(program, {}, in_place=KEEP)
    found = module(*given)
    assert all(map(torch.equal, found, expected))
    assert sum("stepped" in str(node.target) for node in module.graph.nodes) == 2


def test_steps_of_several_dtypes_stay_apart() -> None:
    """Accelerators have no kernel for lists of them."""
    lines = ["parameter %a: f32[3]", "parameter %b: bf16[3]", "parameter %c: bf16[3]"]
    lines += ["input %x: f32[3]", "input %y: bf16[3]", "%loss: f32[] = aten.sum.default(self=%x)"]
    lines += ["%lr: f32[] = aten.full.default(size=[], fill_value=0.5)"]
    for name, dtype, gradient in (("a", "f32", "x"), ("b", "bf16", "y"), ("c", "bf16", "y")):
        lines.append(
            f"%{name}.new: {dtype}[3], %{name}.g: {dtype}[3] = aten._fused_sgd.tensor_lr("
            f"self=[%{name}], grads=[%{gradient}], momentum_buffer_list=[], weight_decay=0.0,"
            " momentum=0.0, lr=%lr, dampening=0.0, nesterov=false, maximize=false,"
            f" is_first_step=false) phase=update\nalias %{name}.new -> %{name}"
        )
    program = parse_program("\n".join([*lines, "return %loss, %a.new, %b.new, %c.new"]))
    module = emit(program, {}, in_place=KEEP)
    assert sum("stepped" in str(node.target) for node in module.graph.nodes) == 2


def test_a_guard_stops_before_anything_is_written() -> None:
    def refuse(loss: torch.Tensor, broken: object) -> None:
        raise Abandoned(loss.item())

    for text in CASES.values():
        program = parse_program(text)
        scalar = {name: not program.main.values[name].shape for name in program.main.inputs}
        given = [W[0].clone() if scalar[name] else W.clone() for name in program.main.inputs]
        with pytest.raises(Abandoned):
            emit(program, {}, in_place=InPlace(refuse))(*given)
        assert all(torch.equal(tensor, W[0] if tensor.ndim == 0 else W) for tensor in given)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("right", [True, False])
def test_the_device_writes_what_a_host_would_let_it(case: str, right: bool) -> None:
    program = parse_program(CASES[case])
    main = program.main
    given = [W.clone() if main.values[name].shape else W[0].clone() for name in main.inputs]
    given[main.inputs.index("x")] *= 1 if right else torch.inf
    one, other = ([each.clone() for each in given] for _ in range(2))
    expected = emit(program, {}, in_place=KEEP)(*one)
    found = emit(program, {}, in_place=InPlace(held=True))(*other)
    if expected[0].isfinite():
        assert all(map(torch.equal, other, one))
        assert all(map(torch.equal, found, expected))
        return
    assert all(map(torch.equal, other, given))
    for output, source in main.aliases:
        left = found[main.outputs.index(output)]
        assert torch.equal(left, given[main.inputs.index(source)])


def test_assumptions_are_looked_at_where_no_guard_is() -> None:
    """Together with the first output, which may be computed after them."""
    text = f"""{HEAD}
        %a: f32[] = aten.sum.default(self=%x)
        %h: f32[3] = aten.mul.Tensor(self=%w, other=%x)
        {LOSS}
        %n: f32[3] = aten.neg.default(self=%x)
        alias %n -> %w
        return %loss, %a, %n"""
    program, seen = parse_program(text), Assumption(1.5, "x.sum() == 1.5", Loc("model.py", 1))
    loss, port, new = program.signature.outputs
    assumed = replace(port, role=ASSUMPTION, options=seen.to_options())
    signature = replace(program.signature, outputs=(loss, assumed, new))
    program = replace(program, signature=signature)
    module, w = emit(program, {}, in_place=InPlace()), W.clone()
    with pytest.raises(Abandoned):
        module(w, X + 1)
    assert torch.equal(w, W)
    module(w, X)
    assert torch.equal(w, -X)
    module, w = emit(program, {}, in_place=InPlace(held=False)), W.clone()
    module(w, X + 1)
    assert torch.equal(w, W)
    module(w, X)
    assert torch.equal(w, -X)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_fused_steps_heed_strides(name: str) -> None:
    """Torch's own kernels go over a gradient's memory as if it lay like the parameter's."""
    step = kernel(f"aten._fused_{name}.default")
    gradient = torch.randn(4, 3).t()

    def moment(gradient: torch.Tensor) -> torch.Tensor:
        p, m, v = (torch.zeros(3, 4) for _ in range(3))
        options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
        given = [[p], [gradient], [m], [v], [], [torch.tensor(1.0)]]
        found = step(*given, **options, amsgrad=False, maximize=False)
        return next(t for t in torch.utils._pytree.tree_leaves(found[2:]) if t is not None)

    torch.testing.assert_close(moment(gradient), 0.1 * gradient)
