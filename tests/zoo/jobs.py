"""What tests of the zoo run in real processes; kept apart so that the processes can import it."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

import autopar
from autopar.runtime.job.processes import Processes
from tests.parallel.targets import join
from tests.zoo.models import ZOO
from tests.zoo.training import Trained, compare, example_optimizer, loss_of, train_eagerly


def train_in_job(processes: Processes, name: str, mesh: str, strategy: str, kind: Any) -> str:
    """Trains a model on the ranks of a job and asserts that it is trained as on one device."""
    join(processes)
    example = ZOO[name]()
    expected = train_eagerly(example)
    inputs = example.batch(0) if example.loss is None else example.batch(0)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel = autopar.parallelize(
            example.model, inputs, mesh=mesh, strategy=strategy, parameters=kind
        )
    optimizer = example_optimizer(parallel)
    losses = []
    for number in range(len(expected.losses)):
        optimizer.zero_grad()
        loss = loss_of(example, parallel, number)
        loss.backward()  # type: ignore[no-untyped-call]
        if kind == "local":
            parallel.clip_grad_norm_(1.0)
        else:
            nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    compare(Trained(losses, parallel.full_state_dict(), {}), expected)
    return ""
