"""Errors in the text form: where, and what was expected."""

from __future__ import annotations

from textwrap import dedent

import pytest

from autopar.ir.text import (
    TextError,
    parse_program,
)

HEADER = "mesh dp=2, tp=4\ninput %x: f32[8, 4]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEADER + "%y: f32[8] = aten.relu.default(self=%x dim=1)\nreturn %y",
            """\
            text, line 3, column 40: expected ',' or ')', got dim
              %y: f32[8] = aten.relu.default(self=%x dim=1)
                                                     ^^^""",
        ),
        (
            HEADER + "%y: f33[8] = aten.relu.default(self=%x)\nreturn %y",
            """\
            text, line 3, column 5: unknown dtype 'f33'; did you mean f32?
              %y: f33[8] = aten.relu.default(self=%x)
                  ^^^""",
        ),
        (
            HEADER + "%y: f32[8] = aten.relu.default(self=%xx)\nreturn %y",
            """\
            text, line 3, column 37: no value %xx in function main; did you mean x?
              %y: f32[8] = aten.relu.default(self=%xx)
                                                  ^^^""",
        ),
        (
            HEADER + "%y: f32[8@pp] = some.op()\nreturn %y",
            """\
            text, line 3, column 11: unknown mesh axis 'pp'; did you mean tp, dp?
              %y: f32[8@pp] = some.op()
                        ^^""",
        ),
        (
            HEADER + "%y = some.op()\nreturn %y",
            """\
            text, line 3, column 4: expected ':', got =
              %y = some.op()
                 ^""",
        ),
        (
            HEADER + "%y: f32[8] some.op()\nreturn %y",
            """\
            text, line 3, column 12: expected ',' or '=', got some.op
              %y: f32[8] some.op()
                         ^^^^^^^""",
        ),
        (
            HEADER + "return %y, %x",
            """\
            text, line 3, column 8: no value %y in function main
              return %y, %x
                     ^^""",
        ),
        (
            "\tinput %x: f32[8\n\treturn",
            """\
            text, line 2, column 2: expected ',' or ']', got return
              \treturn
              \t^^^^^^""",
        ),
    ],
)
def test_errors_show_the_place(text: str, message: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_program(text)
    assert str(caught.value) == dedent(message)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected a program, got the end of the text"),
        ("program odd", 1, 9, "unknown level 'odd'"),
        ("input %x: f32[8]", 1, 17, "expected a line of a function: "),
        ("input %x: f32[8@tp]\nreturn", 1, 17, "no mesh is declared; write `mesh dp=2, tp=4`"),
        ("input %x: f32[8] replicated\nreturn", 1, 7, "no mesh is declared"),
        ("some.op() {}\nreturn", 1, 12, "no mesh is declared"),
        ("inptu %x: f32[8]\nreturn", 1, 1, "unknown role 'inptu'; did you mean input?"),
        ("mesh tp\nreturn", 2, 1, "expected '=', got return"),
        ("mesh tp=0\nreturn", 1, 6, "every axis needs at least 1 process"),
        ("mesh min=2\nreturn", 1, 6, "identifiers, and not min, max"),
        ("mesh tp=2 ids [1]\nreturn", 1, 6, "a mesh of 2 processes can't have 1 ids"),
        ("mesh tp=2 ids [3..1]\nreturn", 1, 16, "3..1 is not a range of process ids"),
        ("mesh tp=2 ids [7, 7]\nreturn", 1, 6, "mesh names a process more than once"),
        ("mesh tp=2 parent @m\nreturn", 1, 18, "no mesh @m is declared"),
        ("mesh tp=2\ninput %x: f32[8] on tp\nreturn", 2, 21, "expected 'mesh' or '@'"),
        ("mesh tp=2\ninput %x: f32[8] on mesh[tp=2]\nreturn", 2, 21, "index 2 is outside"),
        ("mesh tp=2\ninput %x: f32[8] total@tp\nreturn", 2, 18, "unknown reduction 'total'"),
        ("mesh tp=2\nsome.op() {m 8}\nreturn", 2, 12, "expected a factor (name: layout), body"),
        ("mesh tp=2\nsome.op() {m: 8@tp n: 3}\nreturn", 2, 20, "expected ',' or ';' or '}'"),
        ("input %x: f32[8 +]\nreturn", 1, 18, "expected a number, a mesh axis, min, max or '('"),
        ("input %x: f32[min(8)]\nreturn", 1, 20, "expected ',', got )"),
        ("input %x: f32[$b]\nreturn", 1, 15, "expected an open size that is declared, got $b"),
        ("size $b = 3..2\nreturn", 1, 11, "3..2 is not a range of sizes"),
        ("size $b = -1..2\nreturn", 1, 11, "-1..2 is not a range of sizes"),
        ("size $b = 3\nreturn", 2, 1, "expected '..', got return"),
        ("size $b = many\nreturn", 1, 11, "expected the least that the size may be, got many"),
        ("size $3\nreturn", 1, 6, "expected the name of an open size ($name)"),
        ("size $b size $b\nreturn", 1, 14, "open size $b is declared twice"),
        ("signature { input %x: f32[tp] }\nreturn", 1, 19, "the global one, without mesh axes"),
        ("input %x: f32[tp] replicated\nreturn", 1, 7, "no mesh is declared"),
        ("mesh tp=2\ninput %x: f32[tp] replicated\nreturn", 2, 7, "needs its layout behind it"),
        ("program executable input %x: f32[tp] return", 1, 26, "write its box"),
        ("input %x: f32[8]\ninput %x: f32[9]\nreturn", 2, 7, "%x is declared twice, differently"),
        ("input %x: f32[8] as 3\nreturn", 1, 21, "expected the user's name for it, a string"),
        ("some.op(a=)\nreturn", 1, 11, "expected a number, a mesh axis"),
        ("some.op(=1)\nreturn", 1, 9, "expected the name of an argument"),
        ('some.op(a="\\q")\nreturn', 1, 11, "unknown escape \\q"),
        ('some.op(a="\\u{ffffff}")\nreturn', 1, 11, "not in range"),
        ('some.op(a="x\nreturn', 1, 11, "a string has no closing quote"),
        ("some.op() loc(model)\nreturn", 1, 15, "unknown file 'model'"),
        ("some.op() phase=sideways\nreturn", 1, 1, "unknown phase 'sideways'"),
        ("some.op(a=" + "[" * 200 + "\nreturn", 1, 111, "nested more than 100 levels deep"),
        ("some.op(a=" + "(" * 200 + "\nreturn", 1, 112, "at most 100 levels of nesting"),
        ("some.op(a=" + "-" * 5000 + "1)\nreturn", 1, 112, "at most 100 levels of nesting"),
        ("some.op(a=" + "9" * 5000 + ")\nreturn", 1, 4011, "expected ',' or ')'"),
        ("func f { return }\nfunc f { return }", 2, 1, "there are two functions 'f'"),
        ('func f { input %x: f32[] as "y" return }', 1, 1, "only the inputs and outputs of main"),
        ("func main { return", 1, 19, "expected '}', got the end of the text"),
        ("signature { %x }", 1, 13, "expected input, output or '}'"),
        ("signature { input %x: f32[tp] }", 1, 19, "the shape of a port is the global one"),
    ],
)
def test_errors_name_what_was_expected(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_program(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert message in str(caught.value)
