"""Samples of products and decompositions of matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.ops.sample import Sample, c, f, i, s


def samples() -> Iterator[Sample]:
    """Yields the samples."""
    yield from products()
    yield from packed()
    yield from experts()
    yield from decompositions()
    yield from solutions()


def products() -> Iterator[Sample]:
    """Yields samples of matrix products."""
    yield s("mm", f(3, 4), f(4, 5))
    yield s("mm", f(1, 7), f(7, 2))
    yield s("mm", c(3, 4), c(4, 5))
    yield s("mm", f(3, 0), f(0, 5))
    yield s("mm", f(3, 4, dtype=torch.bfloat16), f(4, 5, dtype=torch.bfloat16))
    yield s("mm", i(3, 4), i(4, 5))
    yield s("mm", i(3, 4, dtype=torch.int32), i(4, 5, dtype=torch.int32))
    yield s("bmm", f(2, 3, 4), f(2, 4, 5))
    yield s("mv", f(3, 4), f(4))
    for name in ("dot", "vdot"):
        yield s(name, f(5), f(5))
        yield s(name, i(5), i(5))
    yield s("dot", c(5), c(5))
    yield s("outer", f(3), f(4))
    yield s("ger", f(3), f(4))
    for shape in ((5,), (3, 5), (1, 5), (3, 1), ()):
        yield s("addmm", f(*shape), f(3, 4), f(4, 5))
        yield s("addbmm", f(*shape), f(2, 3, 4), f(2, 4, 5))
        yield s("addr", f(*shape), f(3), f(5), beta=2, alpha=3)
    yield s("addbmm", f(3, 5), f(2, 3, 4), f(2, 4, 5), beta=2, alpha=3)
    yield s("addbmm", i(3, 3, dtype=torch.int32), *(i(2, 3, 3, dtype=torch.int32) for _ in "ab"))
    yield s("addr", i(3, 5), i(3), i(5))
    yield Sample("autopar.add_product", {"self": f(3, 5), "mat1": f(3, 4), "mat2": f(4, 5)})
    yield s("_addmm_activation", f(5), f(3, 4), f(4, 5))
    yield s("_addmm_activation", f(5), f(3, 4), f(4, 5), use_gelu=True)
    yield s("addmm", f(5), f(3, 4), f(4, 5), beta=2, alpha=3)
    yield s("addmm", f(5) * float("nan"), f(3, 4), f(4, 5), beta=0, alpha=3)
    yield s("baddbmm", f(2, 3, 5), f(2, 3, 4), f(2, 4, 5), beta=2)
    yield s("baddbmm", f(1, 1, 5), f(2, 3, 4), f(2, 4, 5))
    yield s("addmv", f(3), f(3, 4), f(4))
    yield s("addmv", f(1), f(3, 4), f(4), beta=2, alpha=3)
    yield s("matmul", f(2, 1, 3, 4), f(5, 4, 2))
    yield s("matmul", f(3, 4), f(4))
    yield s("matmul", f(4), f(2, 4, 3))
    yield s("matmul", f(4), f(4))
    yield s("linear", f(2, 3, 4), f(5, 4))
    yield s("linear", f(2, 3, 4), f(5, 4), f(5))
    yield s("linear", f(4), f(5, 4), f(5))
    yield s("_trilinear", f(3, 4), f(2, 4, 5), f(3, 5), [1, 3], [0], [1, 2], [2, 3])
    yield s("_trilinear", f(1, 3), f(5, 3, 4), f(1, 4), [1, 3], [0], [1, 2], [2, 3])
    yield s("_trilinear", f(3, 4), f(3, 4), f(3, 4), [], [], [], [-1])
    for shape in ((4, 5), (5, 3), (3, 3), (1, 4), (0, 3)):
        yield s("trace", f(*shape))
    yield s("trace", i(4, 5))
    yield s("trace", c(4, 5))
    yield s("trace", i(4, 5, dtype=torch.int8))
    yield s("trace", torch.tensor([[1.0, float("nan")], [2.0, 3.0]]))


def _scales_rows() -> bool:
    """Whether this PyTorch scales rows apart on this processor; 2.11 takes one scale on CPUs."""
    small, rows = torch.zeros(16, 16).to(torch.float8_e4m3fn), torch.ones(16, 1)
    try:
        torch._scaled_mm(small, small.t(), rows, rows.t(), out_dtype=torch.float32)
    except RuntimeError:
        return False
    return True


def packed() -> Iterator[Sample]:
    """Yields samples of products in few bits, and of groups of matrices."""
    small, single = torch.int8, torch.float32
    yield s("_int_mm", i(18, 8, dtype=small), i(8, 8, dtype=small))
    left, right = f(3, 48).to(torch.float8_e4m3fn), f(48, 32).to(torch.float8_e4m3fn)
    one, rows, columns = f(low=0.5, dtype=single), f(3, 1, dtype=single), f(1, 32, dtype=single)
    yield s("_scaled_mm", left, right, one, one, out_dtype=single)
    if _scales_rows():
        yield s("_scaled_mm", left, right, rows, columns, out_dtype=single)
    yield s("_scaled_mm", left, right, one, one, f(32, dtype=single), out_dtype=single)
    yield s("_scaled_mm", left[:, :24], right[:24], one, one, out_dtype=single)
    half, ends = torch.bfloat16, torch.tensor([2, 8], dtype=torch.int32)
    # Small, since the pieces of pending sums are not, and bfloat16 rounds them.
    groups: dict[str, Any] = {"low": -0.2, "high": 0.2, "dtype": half}
    yield s("_grouped_mm", f(2, 3, 16, **groups), f(2, 16, 48, **groups))
    yield s("_grouped_mm", f(8, 32, **groups), f(2, 32, 48, **groups), ends)
    yield s("_grouped_mm", f(2, 3, 32, **groups), f(32, 8, **groups), ends)
    yield s("_grouped_mm", f(3, 8, **groups), f(8, 32, **groups), ends)


def experts() -> Iterator[Sample]:
    """Yields samples of products of groups of rows with the matrices of their experts."""
    import transformers.integrations.moe  # noqa: F401  (it registers the ops)

    for ends in ([2, 2, 5, 8], [0, 8, 8, 8]):
        offs = torch.tensor(ends, dtype=torch.int32)
        operands = (f(8, 6), f(4, 6, 4), offs)
        yield s("transformers.grouped_mm_fallback", *operands)
        yield s("transformers.grouped_mm_fallback_backward", *operands, f(8, 4))


def regular(*batch: int) -> Tensor:
    """Returns matrices that are far from singular."""
    return f(*batch, 4, 4) + 5 * torch.eye(4, dtype=torch.float64)


def positive(*batch: int) -> Tensor:
    """Returns positive definite matrices."""
    return regular(*batch) @ regular(*batch).mT


def decompositions() -> Iterator[Sample]:
    """Yields samples of decompositions, inverses and functions of matrices."""
    square = (
        "_linalg_det _linalg_slogdet linalg_inv_ex linalg_matrix_exp linalg_lu linalg_qr geqrf"
        " linalg_lu_factor_ex linalg_eig _linalg_eigvals _linalg_svd linalg_pinv.atol_rtol_tensor"
    )
    for name in square.split():
        yield s(name, regular(3))
        yield s(name, regular(2, 1))
        yield s(name, regular())
    for name in ["linalg_cholesky_ex", "cholesky", "cholesky_inverse", "_linalg_eigh"]:
        yield s(name, positive(3))
    yield s("linalg_ldl_factor_ex", positive(3))
    yield s("_linalg_eigh", positive(3), "U", False)
    yield s("_linalg_svd", f(3, 4, 5), compute_uv=False)
    yield s("_linalg_svd", f(3, 4, 5), True)
    yield s("linalg_qr", f(3, 5, 4), "complete")
    yield s("linalg_qr", f(3, 5, 4), "r")
    yield s("linalg_lu", f(3, 5, 4))
    yield s("linalg_pinv.atol_rtol_tensor", f(3, 5, 4), atol=f(3, low=0, high=0.1), rtol=f(1))
    yield s("linalg_householder_product", f(3, 5, 4), f(3, 4))
    factors, pivots, _ = torch.linalg.lu_factor_ex(regular(3))
    yield s("lu_unpack", factors, pivots)
    yield s("lu_unpack", factors, pivots, False)


def solutions() -> Iterator[Sample]:
    """Yields samples of solutions of equations."""
    a, sides = regular(3), f(3, 4, 5)
    factors, pivots, _ = torch.linalg.lu_factor_ex(a)
    yield s("linalg_lu_solve", factors, pivots, sides)
    yield s("linalg_lu_solve", factors, pivots, f(3, 5, 4), left=False)
    yield s("linalg_lu_solve", factors[:1], pivots[:1], f(3, 4, 5), adjoint=True)
    ld, pivots, _ = torch.linalg.ldl_factor_ex(positive(3))
    yield s("linalg_ldl_solve", ld, pivots, sides)
    upper = torch.triu(a)
    yield s("linalg_solve_triangular", upper, sides, upper=True)
    yield s("linalg_solve_triangular", upper, f(3, 5, 4), upper=True, left=False)
    yield s("linalg_solve_triangular", upper, f(2, 1, 4, 5), upper=True)
    yield s("_linalg_solve_ex", a, sides)
    yield s("_linalg_solve_ex", a, f(3, 4))
    yield s("_linalg_solve_ex", a, f(3, 5, 4), left=False)
    yield s("_linalg_solve_ex", regular(), f(4))
    yield s("_linalg_solve_ex", regular(), f(2, 4, 3))
    yield s("triangular_solve", sides, upper)
    yield s("triangular_solve", f(4, 5), upper)
    yield s("cholesky_solve", sides, torch.linalg.cholesky(positive(3)))
    yield s("cholesky_solve", f(4, 5), torch.linalg.cholesky(positive(3)))
    a, tau = torch.geqrf(f(3, 5, 4))
    yield s("ormqr", a, tau, f(3, 5, 2))
    yield s("ormqr", a, tau, f(3, 2, 5), False, True)
    for driver in ("gelsd", "gels", "gelsy"):
        yield s("linalg_lstsq", f(3, 6, 4), f(3, 6, 2), driver=driver)
        yield s("linalg_lstsq", f(3, 4, 6), f(3, 4, 2), driver=driver)
    yield s("linalg_lstsq", f(3, 6, 4), f(3, 6), driver="gelsd")
