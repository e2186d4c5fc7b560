"""What each rank prepares by itself for a call that none of them begins unless all can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar

from autopar.base.errors import InvalidInputError
from autopar.runtime.agree.agreement import Agreement, Offer

Result = TypeVar("Result")


def no_contents(prepared: object) -> Mapping[str, str]:
    """Returns the contents of what has none."""
    del prepared
    return {}


def prepared_by_all(
    agreement: Agreement,
    within: AbstractContextManager[None],
    offer: Offer,
    prepare: Callable[[], Result],
    contents: Callable[[Result], Mapping[str, str]] = no_contents,
) -> Result:
    """Returns what this rank prepares, if all ranks can, and bring the same.

    Args:
        agreement: What compares what the ranks bring.
        within: What tells the others of failures meanwhile.
        offer: The call, and what must be the same on all ranks.
        prepare: Prepares it: it doesn't communicate, nor change anything.
        contents: Returns, of what was prepared, the contents that must be the same on all ranks,
            by label, as `content_of` says them. It isn't called where nobody compares them.

    Raises:
        InvalidInputError: On all ranks, if `prepare` raises it on one of them, or they make
            different calls, or bring other contents. They can go on.
    """
    with within:
        try:
            prepared = prepare()
            compared = agreement.compares_contents
            offer = replace(offer, contents=contents(prepared) if compared else {})
        except InvalidInputError as error:
            offer = replace(offer, refusal=error)
        refused = agreement.start(offer).settle()
    # Behind the block: it is a mistake of the caller's, and no failure of a rank.
    if refused is not None:
        raise refused
    return prepared
