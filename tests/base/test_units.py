"""Bytes as people write them."""

from __future__ import annotations

import pytest

from autopar.base.errors import InvalidInputError
from autopar.base.units import human_slowdown, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1000", 1000),
        ("512B", 512),
        ("24GiB", 24 * 2**30),
        ("80 GB", 80 * 10**9),
        ("1.5 kib", 1536),
        ("0.5GiB", 2**29),
        ("0.001 MB", 1000),
        (" 2TiB ", 2 * 2**40),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1 gigabyte", "1e9", "1GiB2", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="write a number and a unit, as 24GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["1.5", "0.5", "24.0", "1.5B"])
def test_bytes_have_no_parts(text: str) -> None:
    """Who writes them has forgotten the unit."""
    with pytest.raises(InvalidInputError, match="give a unit, as GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.00012, "0.012% slower than"),
        (1.09541, "9.54% slower than"),
        (1.99999, "100% slower than"),
        (2.04, "2.0 times as slow as"),
        (58.1053, "58 times as slow as"),
        (120.4, "120 times as slow as"),
    ],
)
def test_how_much_slower(ratio: float, text: str) -> None:
    assert human_slowdown(ratio) == text
