"""Finds races: memory of a collective under way that somebody else reads or writes.

On real ranks a collective that was started reads and writes memory beside what is computed, until
it is awaited. Lock-step execution can't show what goes wrong then: there it is done at once. So
each rank of the virtual mesh keeps account of what is under way.

What is sent must stay as it is: also where a backend makes a copy, since another one may not. What
a sum is written over is nobody's until it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, fx

from autopar.base.errors import RuntimeFailure
from autopar.ir.program import Op
from autopar.runtime.collectives.async_collectives import ENDS, REPLACING, STARTS
from autopar.runtime.execute.describe import describe_op
from autopar.runtime.ports.nested import tensors_in


class _Flight(NamedTuple):
    """A collective under way.

    Attributes:
        op: The collective.
        sent: The tensor whose memory it reads.
        version: How often that had been written to when it started; None if torch doesn't count.
        replaced: Whether the result is written over it.
    """

    op: Op
    sent: Tensor
    version: int | None
    replaced: bool


class Flights:
    """The collectives of one rank that are under way."""

    def __init__(self) -> None:
        self._flights: dict[fx.Node, _Flight] = {}

    def before(self, node: fx.Node, values: Mapping[fx.Node, object]) -> None:
        """Looks at a node that is about to be carried out.

        Args:
            node: The node.
            values: What other nodes computed.

        Raises:
            RuntimeFailure: If it may touch memory that isn't its own now.
        """
        replaced = [flight for flight in self._flights.values() if flight.replaced]
        if replaced or node.target in STARTS:
            given = [each for read in node.all_input_nodes for each in tensors_in(values[read])]
            for flight in replaced:
                if any(_share(flight.sent, tensor) for tensor in given):
                    raise _race(node.meta["op"], "takes", "a sum is being written over", flight)
            if node.target in STARTS:
                self._start(node, given[0])

    def after(self, node: fx.Node) -> None:
        """Looks at what a node has written to.

        Raises:
            RuntimeFailure: If something is sending it.
        """
        for flight in self._flights.values():
            if _version(flight.sent) != flight.version:
                raise _race(node.meta["op"], "writes to", "is being sent", flight)

    def end(self, node: fx.Node, result: Tensor) -> Tensor:
        """Returns a collective's result where it is on real ranks.

        Args:
            node: What awaits it.
            result: Its result in memory of its own.
        """
        flight = self._flights.pop(node.all_input_nodes[0])
        if flight.replaced and flight.sent.is_contiguous():
            return flight.sent.copy_(result)
        return result

    def _start(self, node: fx.Node, sent: Tensor) -> None:
        replaced = node.target in REPLACING and bool(node.args[-1])
        op: Op = node.meta["op"]
        for flight in self._flights.values():
            if replaced and _share(flight.sent, sent):
                raise _race(op, "is written over", "is being sent", flight)
        early = [user for user in node.users if user.target not in ENDS]
        if early:
            raise RuntimeFailure(
                f"{describe_op(early[0].meta['op'])} doesn't wait for {describe_op(op)}"
            )
        self._flights[node] = _Flight(op, sent, _version(sent), replaced)


def _race(op: Op, does: str, what: str, flight: _Flight) -> RuntimeFailure:
    other = describe_op(flight.op)
    return RuntimeFailure(
        f"a race: {describe_op(op)} {does} memory that {what}: {other} isn't over"
    )


def _share(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors are in one piece of memory."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _version(tensor: Tensor) -> int | None:
    """Returns how often the memory of a tensor was written to; views of it count together."""
    return None if tensor.is_inference() else tensor._version
