"""Kernels: found by kind, called by name, clear about what is missing."""

from __future__ import annotations

import pytest
import torch

from autopar.base.errors import InvalidInputError
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import Coord
from autopar.ir.program import DType, Ref
from autopar.runtime.kernels.table import IR_DTYPES, TORCH_DTYPES, kernel, signature, to_torch


def test_every_dtype_has_its_size() -> None:
    assert {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()} == DTYPE_BYTES
    assert all(TORCH_DTYPES[name] is dtype for dtype, name in IR_DTYPES.items())


def test_arguments_as_torch_takes_them() -> None:
    assert to_torch(((1, 2), DType("bf16"), None, 0.5)) == [[1, 2], torch.bfloat16, None, 0.5]
    for unresolved in (Ref("x"), Coord("tp"), (1, Coord("tp"))):
        with pytest.raises(TypeError, match="must be resolved"):
            to_torch(unresolved)


def test_aten_by_name() -> None:
    x = torch.arange(4.0)
    torch.testing.assert_close(kernel("aten.add.Tensor")(self=x, other=x, alpha=2), 3 * x)


@pytest.mark.parametrize("kind", ["aten.view.default", "aten._unsafe_view.default"])
def test_views_take_results_of_any_strides(kind: str) -> None:
    x = torch.arange(6).reshape(2, 3).T
    assert kernel(kind)(self=x, size=[6]).tolist() == [0, 3, 1, 4, 2, 5]


def test_recurrent_layers_take_sequences_of_any_strides() -> None:
    """The kernel of oneDNN reads its sequences as if they were contiguous."""
    forward = kernel("aten.mkldnn_rnn_layer.default")
    backward = kernel("aten.mkldnn_rnn_layer_backward.default")
    layer = [weight.detach() for weight in torch.nn.LSTM(4, 3).parameters()]
    state = [torch.zeros(1, 2, 3)] * 2
    sequences = torch.randn(2, 5, 4).transpose(0, 1)
    gradient = torch.randn(2, 5, 3).transpose(0, 1)
    found = []
    for x, ones in ((sequences, gradient), (sequences.contiguous(), gradient.contiguous())):
        *ends, workspace = forward(x, *layer, *state, False, [], 2, 3, 1, True, False, False, True)
        options = (False, 2, 3, 1, True, True, False, [], False, workspace)
        found.append((*ends, *backward(x, *layer, *state, *ends, ones, *state, *options)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("piece", [slice(2, 8), slice(0, 12, 2)])
def test_strides_are_those_of_a_tensor_with_memory_of_its_own(piece: slice) -> None:
    x = torch.arange(12)[piece]
    found = kernel("aten.as_strided.default")(self=x, size=[3], stride=[2], storage_offset=0)
    assert found.tolist() == x[::2].tolist()


def test_ops_of_other_libraries() -> None:
    with torch.library._scoped_library("kernel_test", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: 2 * x, "CPU")
        assert kernel("kernel_test.double.default")(x=torch.ones(1)).item() == 2


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("aten.mm.defualt", r"aten\.mm has the overloads default, "),
        ("aten.matmull.default", r"has no such op"),
        ("mylib.op.default", r"isn't registered with torch; import the module"),
        ("comm.all_reduce", r"by the executor, not by a kernel"),
        ("autopar.to_partail", r"did you mean autopar\.to_partial"),
        ("mm", r"isn't registered"),
    ],
)
def test_unknown_kinds(kind: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        kernel(kind)


def test_signatures() -> None:
    assert signature("aten.mm.default").positional == ("self", "mat2")
    assert not signature("aten.mm.default").device
    assert signature("aten.full.default").device
    assert "dtype" in signature("aten.full.default").keyword
    assert signature("autopar.to_partial").positional == ("self", "monoid", "index")
    assert signature("autopar.embedding").keyword == ("extent", "offset")


def test_results_that_are_masked_out_are_left_out() -> None:
    x = torch.ones(2, 3)
    backward, args = kernel("aten.native_layer_norm_backward.default"), (x, x, [3])
    statistics, weight = torch.ones(2, 1), x[0]
    for mask, shapes in (([True, False, True], [(2, 3), (3,)]), ([False, True, False], (3,))):
        found = backward(*args, statistics, statistics, weight, weight, mask)
        alone = isinstance(found, torch.Tensor)
        assert (found.shape if alone else [part.shape for part in found]) == shapes


def test_a_complete_value_becomes_partial() -> None:
    x = torch.tensor([2, -3])
    to_partial = kernel("autopar.to_partial")
    assert to_partial(self=x, monoid="sum", index=0) is x
    assert to_partial(self=x, monoid="max", index=1).tolist() == [torch.iinfo(x.dtype).min] * 2


def test_a_conjugate_is_more_than_a_mark() -> None:
    x = torch.tensor([1 + 2j])
    found = kernel("aten._conj.default")(self=x)
    assert not found.is_conj()
    assert found.tolist() == [1 - 2j]


def test_gradients_that_nobody_asked_for_are_left_out() -> None:
    image, grid = torch.randn(1, 2, 3, 3), torch.rand(1, 2, 2, 2)
    backward = kernel("aten.grid_sampler_2d_backward.default")
    given = (torch.randn(1, 2, 2, 2), image, grid, 0, 0, False)
    found = backward(*given, [True, False])
    assert isinstance(found, torch.Tensor)
    assert found.shape == image.shape
    assert backward(*given, output_mask=[False, True]).shape == grid.shape
    assert len(backward(*given, [True, True])) == 2
