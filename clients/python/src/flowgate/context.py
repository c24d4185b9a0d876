"""What a handler is given besides its input."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

from .attempt import Attempt, Level, StopReason

__all__ = ["AsyncContext", "Context", "Level", "State", "StopReason"]


class State:
    """The state values of the run."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def get(self, name: str, default: Any = None) -> Any:
        """What this attempt set, else what the run had when the attempt began."""
        return self._attempt.state_get(name, default)

    def set(self, name: str, value: object) -> None:
        """Sets a value of the run when the attempt succeeds."""
        self._attempt.state_set(name, value)


class Facts:
    """What both kinds of context have."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.state = State(attempt)

    @property
    def input(self) -> Any:
        """The input: the start's payload, or an object keyed by event name."""
        return self._attempt.job.input

    @property
    def run_id(self) -> str:
        """The run."""
        return self._attempt.job.run_id

    @property
    def flow(self) -> str:
        """The flow's name."""
        return self._attempt.job.flow

    @property
    def revision(self) -> str:
        """The revision that the run is pinned to."""
        return self._attempt.job.revision

    @property
    def step(self) -> str:
        """The step's name."""
        return self._attempt.job.step

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.job.attempt

    @property
    def key(self) -> str:
        """The idempotency key: the same for every attempt of this step in this run."""
        return self._attempt.job.key

    @property
    def traceparent(self) -> str | None:
        """The attempt's place in the run's trace, for the header of that name in requests that
        belong to it; `None` unless the server exports spans."""
        return self._attempt.job.traceparent

    @property
    def cancelled(self) -> bool:
        """Whether the attempt must stop, for whatever reason."""
        return self._attempt.stop_reason is not None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the attempt must stop: `cancelled`, `lease_lost`, `timed_out` or `shutdown`."""
        return self._attempt.stop_reason

    def heartbeat(self) -> None:
        """Raises `Stopped` if the attempt must stop. Leases are renewed without it."""
        self._attempt.check()

    def emit(self, event: str, data: object = None) -> None:
        """Emits an event when the attempt succeeds. An attempt that fails emits nothing."""
        self._attempt.emit(event, data)

    def log(self, level: Level, text: str) -> None:
        """Keeps a log line of the step. Never waits, and is kept also if the attempt fails."""
        self._attempt.log(level, text)


class Context(Facts):
    """The context of a handler that is a plain function; it runs on a thread of its own."""

    def emit_now(self, event: str, data: object = None) -> None:
        """Emits an event at once; it stays even if this attempt fails."""
        self._attempt.emit_now(event, data)

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Waits until the attempt must stop, or so many seconds; whether it must stop."""
        return self._attempt.stopped.wait(timeout)


class AsyncContext(Facts):
    """The context of a handler that is an `async def`. Its task is cancelled when it must stop."""

    async def emit_now(self, event: str, data: object = None) -> None:
        """Emits an event at once; it stays even if this attempt fails."""
        await on_thread(lambda: self._attempt.emit_now(event, data))


async def on_thread(work: Callable[[], None]) -> None:
    """Waits for work on a thread that does not keep the process from ending."""
    future: concurrent.futures.Future[None] = concurrent.futures.Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            outcome: BaseException | None = error
        else:
            outcome = None
        # Whoever waited may have been cancelled meanwhile.
        if future.set_running_or_notify_cancel():
            if outcome is None:
                future.set_result(None)
            else:
                future.set_exception(outcome)

    threading.Thread(target=run, name="flowgate-emit", daemon=True).start()
    await asyncio.wrap_future(future)
