"""Kernels of attention on GPUs: which one computes a call, and what it takes besides its results.

    kernel       computes                                        never there as a whole
    flash        16 bits, without a mask                         scores
    efficient    16 and 32 bits, with or without a mask          scores
    definition   64 bits, for which torch has no other kernel

Sources: the conditions in `sdp_utils.cpp` of torch (2.11 to 2.13) for compute capability 8.0 and
above, under which a kernel is chosen, and the buffers in `attention.cu`, `attention_backward.cu`
and `flash_api.cpp`. The bytes have not been measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autopar.ir.memory.strides import Placed, Shape, dense, is_contiguous
from autopar.ir.ops.products.attention import FIRST
from autopar.ir.program import Arg

FLASH_KERNEL, EFFICIENT_KERNEL, BY_DEFINITION = "flash", "efficient", "definition"

LARGEST_FLASH_HEAD = 256
"""Elements of a head that the flash kernel takes at most."""

ALIGNED_BYTES = 16
"""Both kernels load so many bytes at once: rows begin at multiples, and heads are multiples."""

MASK_STEP = 16
"""Rows of a mask lie multiples of so many elements apart."""

SUMS_STEP = 32
"""The efficient kernel keeps a multiple of so many logarithms of sums per head."""

ROWS_STEP = 128
"""The flash kernel's gradient adds up multiples of so many rows."""


def gpu_kernel(
    itemsize: int, query: Shape, key: Shape, value: Shape, *, masked: bool, first: int | None
) -> str:
    """Returns the kernel that computes an attention on a GPU.

    Args:
        itemsize: Bytes of an element.
        query: [batch, heads, length, size].
        key: [batch, heads of keys, length of keys, size].
        value: The same, of another size of heads perhaps.
        masked: Whether something is added to scores.
        first: The number of the first query, where queries don't see what is behind them. The flash
            kernel takes it that the last one sees the last key.
    """
    if itemsize > 4:
        return BY_DEFINITION
    ends = first is None or query[-2] + first == key[-2]
    fits = query[-1] == value[-1] and padded(query[-1], itemsize) <= LARGEST_FLASH_HEAD
    if itemsize == 2 and not masked and ends and fits:
        return FLASH_KERNEL
    return EFFICIENT_KERNEL


def is_efficient(itemsize: int, *, masked: bool) -> bool:
    """Returns whether the efficient kernel computes attention, of heads as models have them."""
    return itemsize == 4 or (itemsize < 4 and masked)


def padded(size: int, itemsize: int) -> int:
    """Returns the size of heads that kernels are given, of which the last elements are zeros."""
    return _multiple(size, ALIGNED_BYTES // itemsize)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of attention.

    Attributes:
        query, key, value: Its operands.
        mask: What is added to scores.
        kernel: What computes it.
        first: The number of the first query, where queries don't see what is behind them. Where
            that depends on the rank, it is that of the last ones.
    """

    query: Placed
    key: Placed
    value: Placed
    mask: Placed | None
    kernel: str
    first: int | None

    @classmethod
    def of(cls, operands: Sequence[Placed], args: Mapping[str, Arg]) -> _Call:
        """Returns the call with these operands: query, key, value, and a mask if there is one."""
        query, key, value, *given = operands
        first = None
        if args.get("is_causal"):
            length, keys = query.shape[-2], key.shape[-2]
            said = args.get(FIRST)
            first = said if isinstance(said, int) else max(0, keys - length)
            key, value = (_cut(each, min(keys, max(0, first + length))) for each in (key, value))
        shapes = (query.shape, key.shape, value.shape)
        kernel = gpu_kernel(query.itemsize, *shapes, masked=bool(given), first=first)
        mask = given[0] if given else None
        if first and kernel != FLASH_KERNEL:
            scores = (query.shape[-2], key.shape[-2])
            mask = Placed(scores, dense(scores), query.itemsize)
        return cls(query, key, value, mask, kernel, first)

    @property
    def explicit_bytes(self) -> int:
        """The bytes of what says of queries of a part that they don't see what is behind them."""
        made = self.first and self.kernel != FLASH_KERNEL and self.mask is not None
        return self.mask.nbytes if made and self.mask is not None else 0

    @property
    def rows(self) -> int:
        """How many rows of scores there are."""
        return math.prod(self.query.shape[:-1])

    @property
    def scores_bytes(self) -> int:
        return self.rows * self.key.shape[-2] * self.query.itemsize

    @property
    def sharing(self) -> int:
        """How many queries share a head of the keys."""
        return max(1, self.query.shape[1] // max(1, self.key.shape[1]))

    @property
    def padded_bytes(self) -> int:
        """The bytes of operands whose heads are no multiple, as the kernel gets them."""
        return sum(map(_padded_bytes, (self.query, self.key, self.value)))

    @property
    def repeated_bytes(self) -> int:
        """The bytes of keys and values once for each query, which the efficient kernel wants."""
        if self.kernel != EFFICIENT_KERNEL or self.sharing == 1:
            return 0
        return self.sharing * (_whole_bytes(self.key) + _whole_bytes(self.value))

    @property
    def mask_bytes(self) -> int:
        """The bytes of the mask as the kernel gets it, if it is copied for that.

        And of where it is infinite: queries that see no key are looked for.
        """
        if self.mask is None:
            return 0
        keys, looked = self.key.shape[-2], math.prod(self.mask.shape)
        aligned = self.mask.itemsize == self.query.itemsize and keys % MASK_STEP == 0
        if aligned and self.mask.shape[-1] == keys:
            return looked
        rows = math.prod(self.mask.shape[:-1])
        return looked + rows * _multiple(keys, MASK_STEP) * self.query.itemsize

    @property
    def sums_bytes(self) -> int:
        """The bytes of the logarithms of sums as the efficient kernel keeps them."""
        if self.kernel != EFFICIENT_KERNEL:
            return 0
        *lead, length, _ = self.query.shape
        return math.prod(lead) * _multiple(length, SUMS_STEP) * 4

    @property
    def prepared_bytes(self) -> int:
        """The bytes of copies that are made for the kernel."""
        masks = self.explicit_bytes + self.mask_bytes
        return self.padded_bytes + self.repeated_bytes + masks + self.sums_bytes


def forward_temporaries(
    args: Mapping[str, Arg], operands: Sequence[Placed], results: Sequence[Shape]
) -> int:
    """Returns the bytes that `autopar.attention` takes besides its results."""
    call = _Call.of(operands, args)
    if call.kernel == BY_DEFINITION:
        return 2 * call.scores_bytes
    return call.prepared_bytes + _padded_bytes(call.query)


def backward_temporaries(
    args: Mapping[str, Arg], operands: Sequence[Placed], results: Sequence[Shape]
) -> int:
    """Returns the bytes that `autopar.attention_backward` takes besides its results.

    Both kernels add the gradients of queries up in 32 bits; with heads that are shared, those of
    keys and values are made for each query, and added.
    """
    _, query, key, value, out, _, *mask = operands
    call = _Call.of((query, key, value, *mask), args)
    if call.kernel == BY_DEFINITION:
        return 5 * call.scores_bytes
    taken = call.prepared_bytes + 2 * _padded_bytes(query) + 4 * call.rows
    if call.kernel == EFFICIENT_KERNEL and not _is_by_length(out):
        taken += _whole_bytes(out)
    # Gradients are parts of padded ones.
    taken += sum(_whole_bytes(each) - each.nbytes for each in (query, key, value))
    if call.first:  # Zeros for keys that nobody sees.
        taken += key.nbytes + value.nbytes
    if call.sharing > 1:
        taken += call.sharing * (_whole_bytes(key) + _whole_bytes(value))
    if query.itemsize < 4:
        *lead, length, size = query.shape
        wide = math.prod(lead) * _multiple(length, ROWS_STEP) * padded(size, query.itemsize)
        taken += 4 * wide
    return taken


def _is_by_length(x: Placed) -> bool:
    """Returns whether [batch, heads, length, size] lies as [batch, length, heads, size]."""
    order = (0, 2, 1, 3)
    return is_contiguous(tuple(x.shape[at] for at in order), tuple(x.strides[at] for at in order))


def _cut(operand: Placed, keys: int) -> Placed:
    """Returns the first keys, or values."""
    *lead, _, size = operand.shape
    return operand._replace(shape=(*lead, keys, size))


def _multiple(size: int, step: int) -> int:
    return -(-size // step) * step


def _padded_bytes(operand: Placed) -> int:
    """Returns the bytes of a copy with padded heads, if there has to be one."""
    size = operand.shape[-1]
    return 0 if padded(size, operand.itemsize) == size else _whole_bytes(operand)


def _whole_bytes(operand: Placed) -> int:
    *lead, size = operand.shape
    return math.prod(lead) * padded(size, operand.itemsize) * operand.itemsize
