"""The proof of communication: what it accepts, and every kind of mistake that it must find."""

from __future__ import annotations

import pytest

from autopar.base.errors import VerificationError
from autopar.ir.deployment import Deployment
from autopar.ir.expr.expression import Coord, maximum, minimum
from autopar.ir.program import Op, Ref
from autopar.mapping.prove import Proof, prove
from tests.mapping.programs import Step, deployment, function, line_of, program, step

A, B = Coord("a"), Coord("b")
PAIR = {"pp": [[0, 1]]}


def problem(wrong: Deployment) -> str:
    with pytest.raises(VerificationError) as caught:
        prove(wrong)
    return str(caught.value)


def on_2x4(*steps: Step | Op, shape: tuple[object, ...] = (8, 6)) -> Deployment:
    """Eight ranks with coordinates (a, b) run one program; groups over a, b, and both."""
    rows = [[0, 1, 2, 3], [4, 5, 6, 7]]
    groups = {"b": rows, "a": list(zip(*rows, strict=True)), "a_b": [list(range(8))]}
    coords = {"a": [rank // 4 for rank in range(8)], "b": [rank % 4 for rank in range(8)]}
    return deployment([program(shape, steps)], [0] * 8, groups, coords)  # type: ignore[arg-type]


def two_stages(first: list[Step | Op], second: list[Step | Op]) -> Deployment:
    """Ranks 0 and 1 run the first program, 2 and 3 the second one."""
    groups = {"tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]]}
    return deployment([program((8,), first), program((8,), second)], [0, 0, 1, 1], groups)


def reduce(name: str, operand: str, group: str, monoid: str = "sum", size: int = 8) -> Step:
    return step(name, "all_reduce", operand, (size,), monoid=monoid, group=group)


class TestOneProgram:
    def test_every_kind_of_collective(self) -> None:
        block = minimum(2, 6 - 2 * B)  # 6 over 4: 2, 2, 2, 0
        proven = prove(
            on_2x4(
                step(
                    "p",
                    "reduce_scatter",
                    "x",
                    (8, maximum(0, block)),
                    dim=1,
                    monoid="sum",
                    group="b",
                ),
                step("g", "all_gather", "p", (8, 6), dim=1, size=6, group="b"),
                step("r", "all_reduce", "g", (8, 6), monoid="max", group="a"),
                step("s", "broadcast", "r", (8, 6), source=7, group="a_b"),
                step("v", "reduce_scatter", "s", (4, 6), dim=0, monoid="sum", group="a"),
                step(
                    "w",
                    "all_to_all",
                    "v",
                    (8, 3),
                    split_dim=1,
                    concat_dim=0,
                    concat_size=8,
                    group="a",
                ),
                step(
                    "h",
                    "redistribute",
                    "w",
                    (6 - 4 * A, 3),
                    dim=0,
                    size=16,
                    block=8,
                    outputs=10,
                    outputs_block=6,
                    stride=1,
                    start=8,
                    length=1,
                    fill="none",
                    group="a",
                ),
            )
        )
        assert proven == Proof(ranks=8, classes=1, collectives=7)

    def test_sizes_may_depend_on_axes_outside_the_group(self) -> None:
        size = 3 - A
        reduced = step("y", "all_reduce", "x", (size,), monoid="sum", group="b")
        prove(on_2x4(reduced, shape=(size,)))

    def test_sizes_must_not_differ_within_the_group(self) -> None:
        text = problem(
            on_2x4(step("y", "all_reduce", "x", (3 - A,), monoid="sum", group="a"), shape=(3 - A,))
        )
        assert "sizes differ at ranks 4-7" in text
        assert "what it brings along dimension 0 is 2 on rank 4, where 3 fits" in text
        assert "the others of [0, 4]" in text
        assert f"%y = comm.all_reduce(%x, monoid=sum) (model.py:{line_of('y')})" in text

    def test_gathered_blocks_must_follow_the_ceiling_rule(self) -> None:
        # Six over four processes is 2, 2, 2, 0 and not 2, 2, 1, 1.
        spread = 2 - B // 2
        text = problem(
            on_2x4(step("y", "all_gather", "x", (6,), dim=0, size=6, group="b"), shape=(spread,))
        )
        assert "is 1 on rank 2, where 2 fits" in text

    def test_result_must_be_what_the_kind_gives(self) -> None:
        text = problem(
            on_2x4(step("y", "reduce_scatter", "x", (8, 6), dim=0, monoid="sum", group="a"))
        )
        assert "what it gets along dimension 0 is 8 on rank 0, where 4 fits" in text

    def test_whole_size_may_itself_depend_on_the_rank(self) -> None:
        # 5 over a gives 3 and 2; b gathers each part from its blocks 1, 1, 1, 0 and 1, 1, 0, 0.
        part = 3 - A
        block = maximum(0, minimum(1, part - B))
        prove(
            on_2x4(
                step("y", "all_gather", "x", (part,), dim=0, size=part, group="b"), shape=(block,)
            )
        )

    def test_member_out_of_range(self) -> None:
        text = problem(on_2x4(step("y", "broadcast", "x", (8, 6), source=2, group="a")))
        assert "source is 2 on rank 0" in text

    @pytest.mark.parametrize(
        ("wrong", "expected"),
        [
            (
                step("y", "all_gather", "x", (8, 6), dim=2, size=8, group="a"),
                "dim=2 is no dimension",
            ),
            (step("y", "all_gather", "x", (8, 6), dim=0, group="a"), "argument size is missing"),
            (
                step("y", "all_reduce", "x", (8,), monoid="sum", group="a"),
                "brings 2 dimensions and gets 1",
            ),
            (step("y", "gossip", "x", (8, 6), group="a"), "unknown kind of collective"),
            (
                step("y", "all_reduce", "x", (8, 6), monoid="sum", group="c"),
                "there is no group 'c'",
            ),
            (
                step("y", "all_reduce", "x", (8, 6), monoid="sum", axes=("a",)),
                "there is no group ''",
            ),
            (
                step("y", "all_reduce", "x", (Coord("z"), 6), monoid="sum", group="a"),
                "depends on 'z'",
            ),
        ],
    )
    def test_malformed(self, wrong: Step, expected: str) -> None:
        text = problem(on_2x4(wrong))
        assert expected in text
        assert f"model.py:{line_of('y')}" in text

    def test_one_problem_per_group_the_others_may_follow_from_it(self) -> None:
        text = problem(
            on_2x4(
                step("y", "reduce_scatter", "x", (8, 6), dim=0, monoid="sum", group="a"),
                step("z", "reduce_scatter", "y", (8, 6), dim=0, monoid="sum", group="a"),
                step("w", "reduce_scatter", "z", (8, 6), dim=0, monoid="sum", group="b"),
            )
        )
        assert text.count("\n  - ") == 2
        assert "%y" in text
        assert "%w" in text


class TestGroups:
    def test_rank_outside_every_list(self) -> None:
        one = program((8,), [reduce("y", "x", "g")])
        text = problem(deployment([one], [0, 0, 0], {"g": [[0, 1]]}))
        assert "rank 2 is to run it, but in no list of 'g'" in text

    def test_rank_in_two_lists(self) -> None:
        one = program((8,), [reduce("y", "x", "g")])
        assert "holds rank 1 more than once" in problem(
            deployment([one], [0, 0, 0], {"g": [[0, 1], [1, 2]]})
        )

    def test_rank_that_does_not_exist(self) -> None:
        one = program((8,), [reduce("y", "x", "g")])
        assert "names rank 5, but there are only 2" in problem(
            deployment([one], [0, 0], {"g": [[0, 1, 5]]})
        )

    def test_lists_of_different_lengths(self) -> None:
        size = maximum(0, minimum(4 - Coord("odd"), 8))
        body = [
            step("p", "reduce_scatter", "x", (size,), dim=0, monoid="sum", group="g"),
            step("y", "all_gather", "p", (8,), dim=0, size=8, group="g"),
        ]
        # In [0, 1] everyone holds 4 of 8; in [2, 3, 4] it is 3, 3, 2.
        coords = {"odd": [0, 0, 1, 1, 2]}
        groups = {"g": [[0, 1], [2, 3, 4]]}
        prove(deployment([program((8,), body)], [0] * 5, groups, coords))


class TestSeveralPrograms:
    def test_stages_that_fit(self) -> None:
        first = [reduce("y", "x", "tp"), reduce("t", "y", "pp")]
        second = [reduce("t", "x", "pp"), reduce("z", "t", "tp")]
        assert prove(two_stages(first, second)) == Proof(ranks=4, classes=2, collectives=3)

    def test_swapped_collectives_of_one_shape(self) -> None:
        text = problem(
            two_stages(
                [reduce("u", "x", "pp"), reduce("v", "u", "pp")],
                [reduce("v", "x", "pp"), reduce("u", "v", "pp")],
            )
        )
        assert "two different collectives meet" in text
        assert f"ranks 0-1: %u = comm.all_reduce(%x, monoid=sum) (model.py:{line_of('u')})" in text
        assert f"ranks 2-3: %v = comm.all_reduce(%x, monoid=sum) (model.py:{line_of('v')})" in text

    @pytest.mark.parametrize(
        ("other", "expected"),
        [
            (reduce("u", "x", "pp", "max"), "monoid differs: sum and max"),
            (step("u", "broadcast", "x", (8,), source=0, group="pp"), "different kinds"),
            (
                step("u", "all_reduce", "x", (8, 1), monoid="sum", group="pp"),
                "brings 1 dimensions and gets 2",
            ),
        ],
    )
    def test_different_collectives(self, other: Step, expected: str) -> None:
        text = problem(two_stages([reduce("u", "x", "pp")], [other]))
        assert expected in text
        assert f"model.py:{line_of('u')}" in text

    def test_different_dtypes(self) -> None:
        def stage(dtype: str) -> list[Step | Op]:
            return [
                Step("y", "aten.to", "x", (8,), dtype=dtype),
                step("u", "all_reduce", "y", (8,), dtype, monoid="sum", group="pp"),
            ]

        assert "dtypes differ: f32 and bf16" in problem(two_stages(stage("f32"), stage("bf16")))

    def test_different_sizes(self) -> None:
        def stage(size: int) -> list[Step | Op]:
            return [
                Step("y", "aten.view", "x", (size,)),
                step("u", "all_reduce", "y", (size,), monoid="sum", group="pp"),
            ]

        text = problem(two_stages(stage(8), stage(4)))
        assert "is 4 on rank 2, where 8 fits the others of [0, 2]" in text

    def test_different_settings(self) -> None:
        def stage(source: int) -> list[Step | Op]:
            return [step("u", "broadcast", "x", (8,), source=source, group="pp")]

        text = problem(two_stages(stage(0), stage(1)))
        assert "sizes differ at ranks 2-3: source is 1 on rank 2, where 0 fits" in text

    def test_missing_collective(self) -> None:
        text = problem(two_stages([reduce("u", "x", "pp")], []))
        assert "ranks 0-1 wait for ever in group 'pp', in %u" in text
        assert "the program of ranks 2-3 ends without it" in text

    def test_deadlock_between_groups_whose_collectives_match_pairwise(self) -> None:
        # Every group sees the same sequence from both sides, and still everybody waits.
        text = problem(
            deployment(
                [
                    program((8,), [reduce("u", "x", "ab"), reduce("w", "u", "ca")]),
                    program((8,), [reduce("v", "x", "bc"), reduce("u", "v", "ab")]),
                    program((8,), [reduce("w", "x", "ca"), reduce("v", "w", "bc")]),
                ],
                [0, 1, 2],
                {"ab": [[0, 1]], "bc": [[1, 2]], "ca": [[2, 0]]},
            )
        )
        assert "rank 0 waits for ever in group 'ab', in %u" in text
        assert "rank 1 waits in group 'bc', in %v" in text
        assert text.count("\n  - ") == 3

    def test_ring_without_deadlock(self) -> None:
        prove(
            deployment(
                [
                    program((8,), [reduce("u", "x", "ab"), reduce("w", "u", "ca")]),
                    program((8,), [reduce("u", "x", "ab"), reduce("v", "u", "bc")]),
                    program((8,), [reduce("v", "x", "bc"), reduce("w", "v", "ca")]),
                ],
                [0, 1, 2],
                {"ab": [[0, 1]], "bc": [[1, 2]], "ca": [[2, 0]]},
            )
        )

    def test_one_program_that_meets_another_only_on_some_ranks(self) -> None:
        # Ranks 0-3 share a program, but only 0 and 1 share their list with rank 4, which runs
        # another one that lacks the second collective: the classes must be told apart.
        many = program((8,), [reduce("u", "x", "g"), reduce("v", "u", "g")])
        one = program((8,), [reduce("u", "x", "g")])
        text = problem(deployment([many, one], [0, 0, 0, 0, 1], {"g": [[0, 1, 4], [2, 3]]}))
        assert "ranks 0-1 wait for ever" in text
        assert "the program of rank 4 ends without it" in text
        assert "2-3" not in text


class TestFunctions:
    BODY = function("body", (8,), [reduce("u", "x", "pp")])

    def repeated(self, trip: int) -> Op:
        return Op(
            "repeat",
            (("body", "body"), ("trip", trip), ("carried", (Ref("x"),))),
            ("y",),
        )

    def run(self, trips: tuple[int, int]) -> Deployment:
        programs = [program((8,), [self.repeated(trip)], functions=[self.BODY]) for trip in trips]
        return deployment(programs, [0, 1], PAIR)

    def test_repeats_that_agree(self) -> None:
        assert prove(self.run((5, 5))).collectives == 1

    def test_repeats_that_do_not_agree(self) -> None:
        text = problem(self.run((5, 4)))
        assert "rank 0 waits for ever in group 'pp'" in text
        assert "in @body" in text

    def test_a_loop_over_one_program_is_not_unrolled(self) -> None:
        one = program((8,), [self.repeated(10**12)], functions=[self.BODY])
        assert prove(deployment([one], [0, 0], PAIR)).collectives == 1

    def test_circle_of_calls(self) -> None:
        call = Op("call", (("callee", "f"), ("operands", (Ref("x"),))), ("y",))
        looped = program((8,), [call], functions=[function("f", (8,), [call])])
        assert "f -> f" in problem(deployment([looped], [0], {}))


def test_many_ranks_need_no_more_work_than_a_few() -> None:
    """4,096 ranks of one program are one class, and each of its collectives is checked once."""
    lists = [list(range(start, start + 64)) for start in range(0, 4096, 64)]
    coords = {"a": [rank // 64 for rank in range(4096)], "b": [rank % 64 for rank in range(4096)]}
    block = maximum(0, minimum(2, 70 - 2 * B))
    steps: list[Step | Op] = []
    for at in range(50):
        operand = f"g{at - 1}" if at else "x"
        steps.append(
            step(f"s{at}", "reduce_scatter", operand, (block,), dim=0, monoid="sum", group="b")
        )
        steps.append(step(f"g{at}", "all_gather", f"s{at}", (70,), dim=0, size=70, group="b"))
    large = deployment([program((70,), steps)], [0] * 4096, {"b": lists}, coords)
    assert prove(large) == Proof(ranks=4096, classes=1, collectives=100)
