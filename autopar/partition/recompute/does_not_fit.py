"""What is said of a program that needs more memory than there is."""

from __future__ import annotations

from autopar.base.errors import InvalidInputError
from autopar.base.units import human_bytes


class DoesNotFit(InvalidInputError):
    """A program needs more memory than there is, whatever is computed again.

    Attributes:
        least_bytes: What it needs at least.
    """

    def __init__(
        self,
        least_bytes: int,
        limit: int,
        *,
        stored_bytes: int = 0,
        trains: bool = True,
        plans: int = 1,
        place: str = "",
        host_bytes: int = 0,
    ) -> None:
        """Says what is missing, and what would help.

        Args:
            least_bytes: What the program needs at least.
            limit: What there is.
            stored_bytes: What is there all the time: parameters, state and the batch.
            trains: Whether there is a backward pass.
            plans: How many plans were tried, of which this one is the smallest.
            place: Where the limit stands, if the caller didn't give it.
            host_bytes: What waits in the host's memory between uses.
        """
        self.least_bytes = least_bytes
        self._host_bytes = host_bytes
        self._known = (limit, stored_bytes, trains)
        self._plans, self._place = plans, place
        tried = f" with the smallest of {plans} plans tried" if plans > 1 else ""
        again = " even if it computed again what it can" if trains else ""
        if host_bytes:
            also = " and" if trains else " even if"
            again += f"{also} {human_bytes(host_bytes)} waited in the host's memory"
        given = human_bytes(limit) + (f" in {place}" if place else "")
        super().__init__(
            f"a device would hold {human_bytes(least_bytes)}{tried}{again},"
            f" {human_bytes(least_bytes - limit)} more than the limit of {given};"
            f" raise the limit to {human_bytes(least_bytes, enough=True)}"
            + _advice(limit, stored_bytes, trains)
        )

    def at(self, place: str) -> DoesNotFit:
        """Returns the error with the place where the limit stands."""
        return self._but(self._plans, place)

    def among(self, plans: int) -> DoesNotFit:
        """Returns the same, said of the smallest of so many plans."""
        return self._but(plans, self._place)

    def offloaded(self, host_bytes: int, freed_bytes: int) -> DoesNotFit:
        """Returns the same, of a program that was given more since a part of it is elsewhere.

        Args:
            host_bytes: What waits in the host's memory.
            freed_bytes: By how much a device therefore holds less.
        """
        self._host_bytes = host_bytes
        return self._but(self._plans, self._place, freed_bytes)

    def at_least(self, nbytes: int) -> DoesNotFit:
        """Returns the same, of a program that needs at least so much."""
        self.least_bytes = max(nbytes, self.least_bytes)
        return self._but(self._plans, self._place)

    def _but(self, plans: int, place: str, less: int = 0) -> DoesNotFit:
        limit, stored_bytes, trains = self._known
        return DoesNotFit(
            self.least_bytes - less,
            limit - less,
            stored_bytes=stored_bytes - less,
            trains=trains,
            plans=plans,
            place=place,
            host_bytes=self._host_bytes,
        )


class NeverFits(DoesNotFit):
    """A device holds more than the limit whatever is decided, so no plan was made.

    What it needs at least is a bound: it may need more.

    Args:
        nbytes: What devices hold together at least.
        devices: How many there are.
        limit: What each may hold.
        whole_bytes: What one device holds that computes everything at once.
        trains: Whether gradients are among it.
        place: Where the limit stands, if the caller didn't give it.
    """

    def __init__(
        self,
        nbytes: int,
        devices: int,
        limit: int,
        whole_bytes: int,
        *,
        trains: bool,
        place: str = "",
    ) -> None:
        least = -(-nbytes // devices)
        super().__init__(least, limit, stored_bytes=least, trains=trains, place=place)
        self._held = nbytes, devices, limit, whole_bytes
        self._trains = trains
        what = "parameters, their state, the batch and gradients"
        given = human_bytes(limit) + (f" in {place}" if place else "")
        self.args = (
            f"a device holds at least {human_bytes(least)},"
            f" {what if trains else 'parameters and the batch'} alone, whatever is computed again"
            f" or in parts, {human_bytes(least - limit)} more than the limit of {given}; raise the"
            f" limit well above {human_bytes(least, enough=True)} (one device that computes all at"
            f" once holds {human_bytes(whole_bytes)}), or split them over at least"
            f" {-(-nbytes // limit)} devices",
        )

    def at(self, place: str) -> NeverFits:
        """Returns the error with the place where the limit stands."""
        return NeverFits(*self._held, trains=self._trains, place=place)


def _advice(limit: int, stored_bytes: int, trains: bool) -> str:
    """Returns what helps besides a higher limit."""
    what = "parameters, their state and the batch" if trains else "parameters and the batch"
    if stored_bytes > limit:
        times = -(-stored_bytes // limit)
        return (
            f", or split {what}, which alone take {human_bytes(stored_bytes)},"
            f" over at least {times} times as many devices"
        )
    parts = " say yourself what is computed in how many parts (chunks),"
    if not trains:
        return f",{parts} or split {what} over more devices"
    return (
        ", accumulate gradients over more microbatches, which makes activations smaller,"
        f"{parts} or split {what} over more devices"
    )
