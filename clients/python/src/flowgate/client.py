"""Starts and watches runs."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ApiError, Unavailable, WaitTimeout
from .transport import Backoff, Transport, encode, segment

TERMINAL = frozenset({"completed", "failed", "cancelled"})
# Seconds between two looks at a run that is waited for.
LOOK_MIN = 0.05
LOOK_MAX = 1.0


@dataclass(frozen=True)
class RunRef:
    """A run that was started or changed.

    A start that is debounced has a run id that is final, but no run and no status before
    `debounced_until`.
    """

    run_id: str
    flow: str
    status: str | None
    existed: bool
    debounced_until: str | None = None


@dataclass(frozen=True)
class SignalRef:
    """What became of a signal: a wait took it, or the run keeps it for a wait to come."""

    run_id: str
    flow: str
    status: str
    taken: bool
    kept: bool


@dataclass(frozen=True)
class Failure:
    """Why a run failed."""

    step: str | None
    message: str
    kind: str | None


@dataclass(frozen=True)
class Step:
    """Where a step of a run stands."""

    name: str
    state: str
    attempts: int
    result: Any


@dataclass(frozen=True)
class Run:
    """Where a run stands. `raw` is all that the server said."""

    run_id: str
    flow: str
    revision: str
    status: str
    key: str | None
    tags: Mapping[str, str]
    started_at: str
    ended_at: str | None
    failure: Failure | None
    steps: Sequence[Step]
    input: Any
    state: Mapping[str, Any]
    raw: Mapping[str, Any]

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.status in TERMINAL

    def step(self, name: str) -> Step:
        """The step of this name."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(f"the run has no step {name!r}")


class Client:
    """Talks to a flowgate server, or to the first of several that answers."""

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        token: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._transport = Transport(server, token)
        self._timeout = timeout

    def start_run(
        self,
        flow: str,
        input: object = None,
        *,
        key: str | None = None,
        tags: Mapping[str, str] | None = None,
        priority: int | None = None,
        delay: float | None = None,
    ) -> RunRef:
        """Starts a run. With a `key` the same call may be sent again and starts nothing twice."""
        body: dict[str, object] = {"flow": flow, "input": input}
        if key is not None:
            body["key"] = key
        if tags is not None:
            body["tags"] = dict(tags)
        if priority is not None:
            body["priority"] = priority
        if delay is not None:
            body["delay_ms"] = round(delay * 1000)
        try:
            return read_ref(self._post("/runs", body, repeatable=key is not None))
        except Unavailable as error:
            if error.sent and key is None:
                raise Unavailable(
                    f"{error}; the run may have been started: with a key it is safe to ask again",
                    sent=True,
                ) from error
            raise

    def get_run(self, run_id: str) -> Run:
        """Where a run stands."""
        return read_run(self._transport.get(f"/runs/{segment(run_id)}", timeout=self._timeout))

    def wait(self, run: str | RunRef, *, timeout: float | None = None) -> Run:
        """Waits until the run has ended, also while no server answers; `WaitTimeout` if it is late.

        Given what `start_run` returned, it also waits for a debounced run to begin.
        """
        run_id = run if isinstance(run, str) else run.run_id
        may_be_absent = isinstance(run, RunRef) and run.debounced_until is not None
        until = None if timeout is None else time.monotonic() + timeout
        backoff = Backoff()
        pause = LOOK_MIN
        while True:
            problem: Exception | None = None
            try:
                found = self.get_run(run_id)
                backoff.reset()
                if found.is_over:
                    return found
                rest = pause * random.uniform(0.8, 1.2)
                pause = min(pause * 1.5, LOOK_MAX)
            except Unavailable as error:
                problem, rest = error, backoff.pause()
            except ApiError as error:
                is_absent = error.code == "run_not_found" and may_be_absent
                if not error.is_transient and not is_absent:
                    raise
                problem, rest = error, backoff.pause(error.retry_after)
            if until is not None:
                left = until - time.monotonic()
                if left <= 0:
                    raise late(run_id, timeout, problem)
                rest = min(rest, left)
            time.sleep(rest)

    def signal(self, run_id: str, signal: str, data: object = None) -> SignalRef:
        """Sends a signal to a run."""
        body = {"signal": signal, "data": data}
        answer = self._post(f"/runs/{segment(run_id)}/signal", body, repeatable=False)
        return SignalRef(
            run_id=str(answer["run_id"]),
            flow=str(answer["flow"]),
            status=str(answer["status"]),
            taken=bool(answer.get("taken")),
            kept=bool(answer.get("kept")),
        )

    def cancel(self, run_id: str, *, reason: str | None = None) -> RunRef:
        """Cancels a run. To cancel it twice is no error."""
        body: dict[str, object] = {} if reason is None else {"reason": reason}
        return read_ref(self._post(f"/runs/{segment(run_id)}/cancel", body, repeatable=True))

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, path: str, body: Mapping[str, object], *, repeatable: bool) -> Any:
        return self._transport.post(
            path, encode(body), timeout=self._timeout, repeatable=repeatable
        )


def late(run_id: str, timeout: float | None, problem: Exception | None) -> WaitTimeout:
    """What to say when the time to wait is over."""
    if problem is not None:
        return WaitTimeout(f"no word of run {run_id} within {timeout} s: {problem}")
    return WaitTimeout(
        f"run {run_id} has not ended within {timeout} s; `flowgate why {run_id}` says why"
    )


def read_ref(wire: Mapping[str, Any]) -> RunRef:
    """Reads what the server says of a run that it started or changed."""
    return RunRef(
        run_id=str(wire["run_id"]),
        flow=str(wire["flow"]),
        status=wire.get("status"),
        existed=bool(wire.get("existed")),
        debounced_until=wire.get("debounced_until"),
    )


def read_run(wire: Mapping[str, Any]) -> Run:
    """Reads what the server says of a run."""
    failure = wire.get("failure")
    return Run(
        run_id=str(wire["run_id"]),
        flow=str(wire["flow"]),
        revision=str(wire["revision"]),
        status=str(wire["status"]),
        key=wire.get("key"),
        tags=wire.get("tags") or {},
        started_at=str(wire["started_at"]),
        ended_at=wire.get("ended_at"),
        failure=None
        if failure is None
        else Failure(failure.get("step"), str(failure.get("message")), failure.get("kind")),
        steps=[
            Step(
                name=str(step["name"]),
                state=str(step["state"]),
                attempts=int(step.get("attempts") or 0),
                result=step.get("result"),
            )
            for step in wire.get("steps") or []
        ],
        input=wire.get("input"),
        state=wire.get("state") or {},
        raw=wire,
    )
