"""Each op that has a rule and a kernel for the device computes there what it computes on a CPU."""

from __future__ import annotations

import pytest

from autopar.ir.devices import CUDA
from autopar.ir.ops.on_devices import is_own
from autopar.ir.ops.on_gpus import unmet
from autopar.runtime.job.processes import Processes
from autopar.runtime.kernels.table import signature
from tests.gpu.places import PLACE, Note, exact
from tests.ops.sample import Sample, compute
from tests.ops.samples import RUN, samples_by_kind
from tests.ops.split_run_combine import assert_equal
from tests.runtime.job.real import run_ranks

TOLERANCE = 1e-5

KINDS = [
    kind
    for kind in RUN
    if kind.startswith(("aten.", "autopar."))
    and not is_own(kind, CUDA)
    and not signature(kind).device
]
"""But for those that create tensors."""


def problem_of(sample: Sample) -> str:
    """Returns what is wrong with a call on the device; "" if nothing is."""
    try:
        there = [each.to(PLACE) for each in sample.tensors]
        found = compute(sample.kind, sample.ir_args, there)
        for at, (result, whole) in enumerate(zip(found, sample.results, strict=True)):
            assert_equal(result.cpu(), whole, f"result {at}", TOLERANCE)
    except Exception as error:  # whatever a kernel has to say
        return f"{sample}: {str(error).partition(chr(10))[0]:.120}"
    return ""


def judged(processes: Processes) -> list[str]:
    """Returns all problems; in a process of its own, which a kernel may leave without a device."""
    del processes
    with exact():
        samples = [each for kind in KINDS for each in samples_by_kind()[kind]]
        fit = [each for each in samples if not unmet(each.op, each.values)]
        return [problem for each in fit if (problem := problem_of(each))]


@pytest.mark.slow
def test_ops_compute_what_they_do_on_a_cpu(note: Note) -> None:
    (found,) = run_ranks(1, judged)
    note(str(len(KINDS)), f"kinds of ops, {len(found)} calls of them come out otherwise")
    assert found == []
