"""Rules of products, attention, losses, images and elementwise ops with a size that is open.

As in `test_open_sizes_shape`, every sample is taken once per factor of its rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autopar.ir.ops.elementwise import cast, gated, optimizer, pointwise, quantized
from autopar.ir.ops.image import convolution, interpolation, pooling, resizing, sampling
from autopar.ir.ops.losses import alignment, loss, nll
from autopar.ir.ops.products import (
    attention,
    attention_backward,
    distance,
    experts,
    linalg,
    matmul,
    packed_matmul,
    recurrent,
)
from tests.ops.open_sizes import Loss, check_losses
from tests.ops.samples import samples_by_kind

TABLES = (
    *(attention, attention_backward, distance, experts, linalg, matmul, packed_matmul, recurrent),
    *(alignment, loss, nll, convolution, interpolation, pooling, resizing, sampling),
    *(cast, gated, optimizer, pointwise, quantized),
)
KINDS = sorted(kind for table in TABLES for kind in table.RULES if kind in samples_by_kind())

LOSSES: Sequence[Loss] = ()


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_number_put_in_it_is_the_rule_of_the_number(kind: str) -> None:
    check_losses(kind, LOSSES)
