"""Whether a session can be called: not when it is closed, nor after a rank has failed."""

from __future__ import annotations

from autopar.base.errors import InvalidInputError, RuntimeFailure


class Standing:
    """How a session stands. Programs for other shapes share that of their session.

    Attributes:
        what: What users call it.
        remedy: What to do when it has failed.
    """

    def __init__(self) -> None:
        self.what = "session"
        self.remedy = "load it again"
        self._closed = False
        self._failed = ""
        self._cause: Exception | None = None

    def fail(self, failure: Exception, call: str = "") -> None:
        """Notes that a rank has failed; the first failure counts.

        Args:
            failure: What went wrong.
            call: The call that this rank was in then.
        """
        if self._cause is None:
            self._failed, self._cause = call and f" in {call}", failure

    def close(self) -> None:
        """Notes that it is closed."""
        self._closed = True

    @property
    def is_open(self) -> bool:
        """Whether it can be called."""
        return self._cause is None and not self._closed

    def check(self) -> None:
        """Refuses a call that comes too late.

        Raises:
            InvalidInputError: If it is closed.
            RuntimeFailure: If a rank has failed before.
        """
        if self.is_open:
            return
        if self._cause is not None:
            raise RuntimeFailure(
                f"this {self.what} failed earlier{self._failed}: {self._cause}; {self.remedy}"
            ) from None
        raise InvalidInputError(f"this {self.what} is closed; {self.remedy}")
