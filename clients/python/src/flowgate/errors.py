"""What can go wrong, sorted by what to do about it."""

from __future__ import annotations

# Answers that another try may change with nothing else changed.
TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class FlowgateError(Exception):
    """Any error of this package."""


class Unavailable(FlowgateError):
    """No server answered. Whether the request was carried out is not known, unless `sent` is false."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class ApiError(FlowgateError):
    """A server answered, and refused. `code` is stable; the message is for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        path: str | None = None,
        help: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        text = f"{message} ({status} {code})"
        if help:
            text += f"; {help}"
        super().__init__(text)
        self.status = status
        self.code = code
        self.message = message
        self.path = path
        self.help = help
        self.retry_after = retry_after

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed later with nothing else changed."""
        return self.status in TRANSIENT_STATUSES


class HandlerError(FlowgateError):
    """Raised by a handler: the attempt failed, and this is what follows from it.

    Any other exception of a handler fails the attempt too, and is tried again as the step's
    `retry` says.
    """

    def __init__(
        self, message: str, *, retry: bool = True, retry_after: float | None = None
    ) -> None:
        if retry_after is not None and not retry:
            raise ValueError("an attempt that must not be tried again has no retry_after")
        if retry_after is not None and not 0 <= retry_after < float("inf"):
            raise ValueError("retry_after is a number of seconds, 0 or more")
        super().__init__(message)
        self.message = message
        self.retry = retry
        self.retry_after = retry_after

    @classmethod
    def fatal(cls, message: str) -> HandlerError:
        """A failure that must not be tried again."""
        return cls(message, retry=False)


class ContextError(FlowgateError):
    """What a handler handed over cannot be taken: it is too large, too much, or no JSON."""


class Stopped(FlowgateError):
    """The attempt must stop: whatever it does from here on changes nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the attempt must stop: {STOP_TEXTS.get(reason, reason)}")
        self.reason = reason


class WaitTimeout(FlowgateError, TimeoutError):
    """A run was still open when the time to wait for it was over."""


STOP_TEXTS = {
    "cancelled": "the run was cancelled",
    "lease_lost": "the lease was lost",
    "timed_out": "the step's timeout is over",
    "shutdown": "the worker is shutting down",
}
