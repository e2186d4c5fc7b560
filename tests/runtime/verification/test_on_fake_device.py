"""What keeps a device from running a program is found, op by op, without the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.devices import CPU, CUDA
from autopar.ir.text import parse_program
from autopar.runtime.verification.on_fake_device import READS_VALUES, obstacles
from autopar.runtime.verification.without_driver import without_driver

LIBRARY = "autopar_devices"
OWN = "aten._scaled_dot_product_flash_attention_for_cpu.default"


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    """Registers ops of another library, each with something that is in the way of a device."""

    def define(name: str, fake: Any, key: str = "CompositeExplicitAutograd") -> None:
        mine.define(f"{name}(Tensor x) -> Tensor")
        mine.impl(name, lambda x: x.clone(), key)
        torch.library.register_fake(f"{LIBRARY}::{name}", fake, lib=mine)

    with torch.library._scoped_library(LIBRARY, "DEF") as mine:
        define("well", torch.empty_like)
        define("on_host", lambda x: torch.empty_like(x, device="cpu"))
        define("shorter", lambda x: x.new_empty(x.shape[0] - 1))
        define("other_dtype", lambda x: x.new_empty(x.shape, dtype=torch.int32))
        define("of_cpus", torch.empty_like, "CPU")
        define("looks", lambda x: x.new_empty(int(x.sum().item())))
        yield


def alone(*ops: str, inputs: str = "%x: f32[3]", returned: str = "%y") -> Deployment:
    """Returns the deployment of a program for one rank."""
    lines = [f"  input     {each}" for each in inputs.split("; ")] + [f"  {op}" for op in ops]
    text = "\n".join(["func main {", *lines, f"  return {returned}", "}"])
    program = parse_program(f'program "p" executable\n\n{text}\n')
    return Deployment((program,), (), (RankEntry(0, (), 0),))


def reasons(deployment: Deployment, device: str = CUDA) -> list[tuple[str, str]]:
    return [(each.op.kind.split(".")[1], each.reason) for each in obstacles(deployment, device)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("well", ""),
        ("on_host", "its result is on cpu"),
        ("shorter", "computes f32[2], the program says f32[3]"),
        ("other_dtype", "computes i32[3], the program says f32[3]"),
        ("of_cpus", "the library that it is from has no kernel for cuda"),
        ("looks", READS_VALUES),
    ],
)
def test_an_op_of_another_library(name: str, reason: str) -> None:
    op = f"{LIBRARY}.{name}.default"
    found = reasons(alone(f"%y: f32[3] = {op}(x=%x)", "%z: f32[3] = aten.relu.default(self=%y)"))
    assert found == ([(name, reason)] if reason else [])


def test_what_follows_is_looked_at_too() -> None:
    found = alone(
        f"%y: f32[3] = {LIBRARY}.on_host.default(x=%x)",
        f"%z: f32[3] = {LIBRARY}.well.default(x=%y)",
        f"%u: f32[3] = {LIBRARY}.shorter.default(x=%z)",
        'aten.mm.default(self=%n, mat2=%n) loc("m.py", 7)'.join(("%v: i64[2, 2] = ", "")),
        inputs="%x: f32[3]; %n: i64[2, 2]",
        returned="%u, %v",
    )
    assert [name for name, _ in reasons(found)] == ["mm", "on_host", "shorter"]
    assert str(obstacles(found)[0]) == (
        "aten.mm.default -> %v (m.py:7) on rank 0: a product of i64, and GPUs have kernels for"
        " floats"
    )


def test_ops_of_the_cpus_own() -> None:
    heads = "f32[2, 3, 4, 8]"
    op = f"%y: {heads}, %s: f32[2, 3, 4] = {OWN}(query=%x, key=%x, value=%x)"
    found = alone(op, inputs=f"%x: {heads}")
    assert reasons(found) == [(OWN.split(".")[1], "only the CPU has a kernel for it")]
    assert reasons(found, CPU) == []
    neutral = op.replace(OWN, "autopar.attention")
    assert reasons(alone(neutral, inputs=f"%x: {heads}")) == []


def test_dtypes_that_kernels_of_gpus_lack_are_none_of_the_cpus() -> None:
    product = "%y: i64[2, 2] = aten.mm.default(self=%x, mat2=%x)"
    assert reasons(alone(product, inputs="%x: i64[2, 2]"), CPU) == []


INDICES: list[Any] = [
    0,
    -1,
    slice(1, None),
    slice(None, None, 2),
    None,
    ...,
    (0, 1),
    (..., 0),
    (..., slice(1)),
    (slice(1), ..., None, slice(None, 2)),
    (None, 0, None),
    torch.tensor([0, 1, 1]),
    (slice(None), torch.tensor([0, 2])),
    ([1, 0], slice(None), [2, 2]),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_brackets_do_without_a_driver(index: Any) -> None:
    expected = torch.zeros(2, 3, 4)[index]
    with FakeTensorMode(allow_non_fake_inputs=True), without_driver():
        found = torch.zeros(2, 3, 4, device="cuda")[index]
    assert (found.shape, found.device.type) == (expected.shape, "cuda")


def test_other_methods_do_without_a_driver() -> None:
    with FakeTensorMode(), without_driver():
        x = torch.zeros(2, 3, dtype=torch.int64, device="cuda")
        x[0] = 1
        x[:, 1:] = torch.ones(2, device="cuda", dtype=torch.int64)
        assert (~x).shape == (2, 3)
        assert x.t().contiguous().stride() == (2, 1)
        assert x.contiguous() is x
