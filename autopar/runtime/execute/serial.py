"""Runs a serial program on one device, through the emitter that all ranks use."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autopar.base.errors import AutoparError, InvalidInputError, RuntimeFailure
from autopar.ir.builds.files import Build
from autopar.ir.expr.at_sizes import NO_SIZES
from autopar.ir.program import Program
from autopar.ir.unroll import unrolled
from autopar.runtime.execute.describe import describe_op
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.stepper import Trace, step
from autopar.runtime.execute.updates import abandoned_raised
from autopar.runtime.ports.ports import (
    Arrays,
    RankArguments,
    all_outputs,
    check_inputs,
    labelled,
    read_weights,
)
from autopar.runtime.state.open_state import begin_state, beginning
from autopar.runtime.weights.weights import WeightFile


def run_serial(
    program: Program,
    weights: Mapping[str, Tensor],
    inputs: Arrays,
    trace: Trace | None = None,
    device: str = "cpu",
) -> dict[str, Tensor]:
    """Returns the outputs by label of a serial program.

    Args:
        program: The program.
        weights: Its weights, global, by value name. State that isn't among them begins.
        inputs: The user's inputs by label.
        trace: Shown every value that is computed.
        device: Where it runs.

    Raises:
        InvalidInputError: If the inputs don't fit the program.
        RuntimeFailure: If an op fails.
    """
    concrete = specialize(unrolled(program), {})
    tensors = check_inputs(program, inputs)
    stored = dict(weights)
    begin_state(beginning(concrete), NO_SIZES, stored, device)
    arguments = RankArguments(concrete).of(tensors, stored, device)
    steps = step(emit(concrete, {}, device), arguments, trace)
    try:
        with abandoned_raised(), torch.no_grad():
            request = next(steps)
    except StopIteration as finished:
        wanted = {at: finished.value[at] for at in all_outputs(program)}
        return labelled(program.signature.outputs, wanted)
    except InvalidInputError:
        raise
    except AutoparError as error:
        raise RuntimeFailure(f"serial program: {error}") from error
    raise RuntimeFailure(f"a serial program has no collectives: {describe_op(request.op)}")


def whole_weights(build: Build) -> dict[str, Tensor]:
    """Returns the weights of a build's serial program by value name."""
    with WeightFile(build=build) as file:
        return read_weights(specialize(unrolled(build.serial), {}), file, "cpu")
