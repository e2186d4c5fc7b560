"""Iterations that do the same as one op: what is one, what isn't, and that results stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.compiled import CompiledModel
from autopar.cost import memory_timeline
from autopar.ir.program import REPEAT, Program, trip_of
from autopar.ir.serde import program_from_bytes, program_to_bytes
from autopar.ir.text import parse_program, print_program
from autopar.ir.verify import verify_structure
from autopar.partition import Roll
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize
from tests.judges.compiled_bodies import bodies_compiled
from tests.judges.tracking import executed

GIVEN = "input %x: f32[12]\ninput %s: f32[3]"


def program_of(lines: str, returned: str) -> Program:
    return parse_program(
        f"program executable\nfunc main {{\n{GIVEN}\n{lines}\nreturn {returned}\n}}"
    )


def marked(lines: str, iteration: str) -> str:
    """Returns ops as those of an iteration."""
    ops = (line.strip() for line in lines.strip().splitlines())
    return "\n".join(f'{op} plan(over=operand, iteration="{iteration}")' for op in ops)


def unrolled(
    iteration: Callable[[int], str],
    count: int,
    *,
    ahead: str = "",
    behind: str = "",
    returned: str = "",
) -> Program:
    """Returns a program of `x` and `s` that runs the ops of a loop so many times."""
    loop = (marked(iteration(number), f"rows {number}") for number in range(count))
    return program_of("\n".join((ahead, *loop, behind)), returned or f"%s{count - 1}")


def before(number: int, first: str = "s") -> str:
    """Returns the name of the sum that an iteration adds to."""
    return f"%s{number - 1}" if number else f"%{first}"


def of_part(number: int, start: int, other: str = "") -> str:
    """Returns an iteration that adds three elements, from `start` on, to a sum."""
    return f"""
        %p{number}: f32[3] = aten.slice.Tensor(self=%x, start={start}, end={start + 3})
        %s{number}: f32[3] = aten.add.Tensor(self={other or before(number)}, other=%p{number})
    """


def run(program: Program) -> tuple[Tensor, ...]:
    return emit(specialize(program, {}), {}).forward(torch.arange(12.0), torch.ones(3))


def rolled(program: Program) -> Program:
    """Returns a program with its loops; it computes the same."""
    done = Roll()(program)
    verify_structure(done)
    assert parse_program(print_program(done)) == done
    assert program_from_bytes(program_to_bytes(done)) == done
    torch.testing.assert_close(run(done), run(program), rtol=0, atol=0)
    return done


def trips(program: Program) -> list[tuple[str, int]]:
    """Returns how often the loops of a program run, each with the function that it is in."""
    return [
        (name, trip_of(op))
        for name, function in program.functions.items()
        for op in function.ops
        if op.kind == REPEAT
    ]


def starts(program: Program) -> str:
    """Returns where the first op of the loop begins, as it is printed."""
    return str(program.functions["rows"].ops[0].arg("start"))


def test_where_a_part_begins_is_an_expression_of_the_iteration() -> None:
    done = rolled(unrolled(lambda t: of_part(t, 3 * t), 4))
    assert trips(done) == [("main", 4)]
    assert starts(done) == "$rows * 3"
    (op,) = done.main.ops
    assert op.operands == ("s", "x")
    assert op.results == ("s3",)


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ((0, 0, 2, 4, 6), "max(0, $rows * 2 + -2)"),
        ((1, 4, 7, 9, 9), "min(9, $rows * 3 + 1)"),
        ((1, 1, 3, 5, 5), "max(1, min(5, $rows * 2 + -1))"),
        ((6, 4, 2, 0, 0), "max(0, $rows * -2 + 6)"),
        ((5, 5, 5, 5, 5), "5"),
    ],
)
def test_what_stops_at_an_end_does_so_in_the_loop(places: tuple[int, ...], text: str) -> None:
    done = rolled(unrolled(lambda t: of_part(t, places[t]), 5))
    assert trips(done) == [("main", 5)]
    assert starts(done) == text


@pytest.mark.parametrize("places", [(0, 5, 3, 9, 8), (0, 4, 1, 5, 2), (0, 9, 0, 9, 0)])
def test_iterations_whose_places_follow_no_rule_stay(places: tuple[int, ...]) -> None:
    program = unrolled(lambda t: of_part(t, places[t]), 5)
    assert rolled(program) == program


def test_a_first_and_a_last_iteration_that_differ_stand_around_the_loop() -> None:
    def iteration(number: int) -> str:
        if number in (0, 4):
            return f"%s{number}: f32[3] = aten.neg.default(self={before(number)})"
        return of_part(number, 2 * number)

    done = rolled(unrolled(iteration, 5))
    assert trips(done) == [("main", 3)]
    assert [op.kind for op in done.main.ops] == ["aten.neg.default", REPEAT, "aten.neg.default"]
    assert starts(done) == "$rows * 2"


def test_two_iterations_of_which_one_begins_otherwise_are_no_loop() -> None:
    other = "%s0: f32[3] = aten.neg.default(self=%s)"
    program = unrolled(lambda t: of_part(t, t) if t else other, 2)
    assert rolled(program) == program


def test_what_others_read_of_an_iteration_keeps_it_apart() -> None:
    behind = "%y: f32[3] = aten.neg.default(self=%s1)"
    program = unrolled(lambda t: of_part(t, t), 4, behind=behind, returned="%s3, %y")
    assert rolled(program) == program


def test_what_isnt_handed_on_leaves_no_loop() -> None:
    behind = "%y: f32[3] = aten.neg.default(self=%p3)"
    done = rolled(unrolled(lambda t: of_part(t, t), 4, behind=behind, returned="%s3, %y"))
    assert trips(done) == [("main", 3)]


def test_a_sum_that_starts_anew_is_none() -> None:
    program = unrolled(lambda t: of_part(t, t, "%s"), 4)
    assert rolled(program) == program


@pytest.mark.parametrize("read_later", [False, True])
def test_a_sum_is_written_over_what_nobody_else_reads(read_later: bool) -> None:
    program = unrolled(
        lambda t: of_part(t, t, before(t, "begun")),
        4,
        ahead="%begun: f32[3] = aten.neg.default(self=%s)",
        behind="%y: f32[3] = aten.neg.default(self=%begun)" if read_later else "",
        returned="%s3, %y" if read_later else "%s3",
    )
    assert bool(rolled(program).functions["rows"].aliases) is not read_later


def test_the_number_isnt_called_as_an_open_size() -> None:
    lines = (marked(of_part(t, t), f"rows {t}") for t in range(3))
    text = "\n".join(["%y: f32[$rows] = aten.neg.default(self=%x)", *lines])
    program = parse_program(
        f"program executable\nsize $rows = 1..20\nfunc main {{\n{GIVEN.replace('12', '$rows')}\n"
        f"{text}\nreturn %y, %s2\n}}"
    )
    done = Roll()(program)
    verify_structure(done)
    assert parse_program(print_program(done)) == done
    assert trips(done) == [("main", 3)]
    found = emit(done, {}).forward(torch.arange(12.0), torch.ones(3), 12)
    torch.testing.assert_close(found[1], torch.tensor([4.0, 7.0, 10.0]))


def handed_on(number: int) -> str:
    """Returns an iteration that hands on its sum, and a view of that."""
    rest, view = (f"%r{number - 1}", f"%v{number - 1}") if number else ("%rest", "%seen")
    return f"""
        %s{number}: f32[3] = aten.add.Tensor(self={before(number, "begun")}, other=%s)
        %r{number}: f32[3] = aten.add.Tensor(self={rest}, other={view})
        %v{number}: f32[3] = aten.view.default(self=%s{number}, size=[3])
    """


def seen_beside(number: int) -> str:
    """Returns an iteration that adds the product with something handed on to a sum."""
    total, other = before(number, "begun"), f"%n{number - 1}" if number else "%turned"
    return f"""
        %s{number}: f32[3, 3] = aten.addmm.default(self={total}, mat1={other}, mat2=%m)
        %n{number}: f32[3, 3] = aten.neg.default(self=%s{number})
    """


def test_a_sum_isnt_written_over_what_the_next_iteration_has_a_view_of() -> None:
    ahead = """
        %begun: f32[3] = aten.neg.default(self=%s)
        %rest: f32[3] = aten.exp.default(self=%s)
        %seen: f32[3] = aten.sin.default(self=%s)
    """
    done = rolled(unrolled(handed_on, 4, ahead=ahead, returned="%s3, %r3, %v3"))
    assert trips(done) == [("main", 4)]


def test_a_sum_isnt_written_over_what_the_same_op_has_a_view_of() -> None:
    ahead = """
        %p: f32[9] = aten.slice.Tensor(self=%x, end=9)
        %m: f32[3, 3] = aten.view.default(self=%p, size=[3, 3])
        %begun: f32[3, 3] = aten.neg.default(self=%m)
        %turned: f32[3, 3] = aten.t.default(self=%begun)
    """
    done = rolled(unrolled(seen_beside, 4, ahead=ahead, returned="%s3, %n3"))
    assert trips(done) == [("main", 4)]


def test_loops_in_a_loop_are_rolled_in_it() -> None:
    places = [(outer, inner) for outer in range(2) for inner in range(3)]
    lines = [
        marked(of_part(at, 4 * outer + inner), f"rows {outer}, cols {inner}")
        for at, (outer, inner) in enumerate(places)
    ]
    done = rolled(program_of("\n".join(lines), "%s5"))
    assert trips(done) == [("main", 2), ("rows", 3)]
    assert str(done.functions["cols"].ops[0].arg("start")) == "$cols + $rows * 4"


class Language(nn.Module):
    """Attention, dropout and a head with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.up = nn.Embedding(61, 8), nn.Linear(8, 32)
        self.down, self.head = nn.Linear(32, 8), nn.Linear(8, 61)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = x + torch.softmax(x @ x.transpose(1, 2), -1) @ x
        x = x + self.down(F.dropout(F.gelu(self.up(x)), 0.2, self.training))
        return F.cross_entropy(self.head(x).flatten(0, 1), target.flatten())


def trained(mesh: str = "1", dtype: torch.dtype = torch.float32, **options: Any) -> CompiledModel:
    torch.manual_seed(0)
    model = Language().to(dtype).train()
    ids, target = torch.randint(0, 61, (4, 24)), torch.randint(0, 61, (4, 24))
    return autopar.compile(
        model,
        (ids, target),
        mesh=mesh,
        training_step=lambda module, batch: module(*batch),
        optimizer=torch.optim.AdamW(model.parameters(), 0.01),
        **{"strategy": None if mesh == "1" else "auto", **options},
    )


CHUNKS = [{"head": 8}, {"head": (0, 7)}, {"up": 4}, {"tokens": 6, "head": 5}]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_what_a_loop_takes_is_predicted(chunks: Any, dtype: torch.dtype) -> None:
    step = trained(chunks=chunks, dtype=dtype)
    (program,) = step.deployment.programs
    assert trips(program)
    coords = step.deployment.coords_of(0)
    seen = executed(program, {}, coords, step.deployment.groups)
    assert seen.peak_bytes == memory_timeline(program, coords).peak_bytes


@pytest.mark.parametrize("mesh", ["1", "3", "3x2", "2x2x2"])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_steps_are_those_of_the_whole(chunks: Any, mesh: str, tmp_path: Path) -> None:
    ids, target = torch.randint(0, 61, (4, 24)), torch.randint(0, 61, (4, 24))
    losses = []
    for name, said in (("whole", {}), ("chunks", {"chunks": chunks})):
        step = trained("1" if name == "whole" else mesh, torch.float64, **said)
        assert bool(trips(step.deployment.programs[0])) is (name == "chunks")
        step.save(tmp_path / name)
        with autopar.load(tmp_path / name, virtual=True) as trainer:
            losses.append([float(trainer.step((ids, target))) for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


def test_a_rank_has_as_many_ops_whatever_there_are_of_parts() -> None:
    few, many = (
        sum(len(function.ops) for function in step.deployment.programs[0].functions.values())
        for step in (trained(chunks={"head": (0, parts)}) for parts in (4, 24))
    )
    assert many <= few


@pytest.mark.slow
def test_torch_compile_sees_an_iteration_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # And what is around the loop.
    assert bodies_compiled(trained(chunks={"head": (0, 8)}), monkeypatch) == 2
