"""Renews the leases of all held jobs with one call, and stops attempts whose time is over.

A third of the lease passes between two renewals, so two may fail before a lease is lost. The worker
judges by its own clock when a lease is over for want of an answer, and the server has the last word
by the token.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .attempt import Attempt
from .errors import ApiError, FlowgateError, Unavailable
from .transport import Backoff, Transport, encode

logger = logging.getLogger("flowgate")

# Parts of the lease after which it is renewed, and that a call may take.
RENEWALS_PER_LEASE = 3


class Renewer:
    """The loop that keeps leases; it has a thread of its own, which handlers cannot keep busy."""

    def __init__(
        self,
        transport: Transport,
        worker_id: str,
        lease: float,
        held: Callable[[], Sequence[Attempt]],
    ) -> None:
        self._transport = transport
        self._worker_id = worker_id
        self._lease = lease
        self._held = held
        self._wake = threading.Event()
        self._has_ended = False
        self._backoff = Backoff(initial=min(0.5, lease / 10), longest=lease / RENEWALS_PER_LEASE)

    def run(self) -> None:
        """Renews until `end`."""
        pause = self._lease / RENEWALS_PER_LEASE
        renew_at = time.monotonic() + pause
        while True:
            self._wake.wait(self._rest(renew_at))
            self._wake.clear()
            if self._has_ended:
                return
            now = time.monotonic()
            attempts = self._held()
            if stop_late(attempts, now):
                # The server learns of a timeout by the renewal that it refuses.
                renew_at = now
            if now < renew_at:
                continue
            attempts = [attempt for attempt in attempts if attempt.is_held]
            renew_at = now + (pause if self.renew(attempts) else self._backoff.pause())

    def end(self) -> None:
        """Ends the loop."""
        self._has_ended = True
        self._wake.set()

    def look(self) -> None:
        """There is a new attempt, whose time may be over before the next renewal."""
        self._wake.set()

    def renew(self, attempts: Sequence[Attempt]) -> bool:
        """Renews these; whether a server answered."""
        if not attempts:
            return True
        jobs = [
            {"run_id": a.job.run_id, "step": a.job.step, "token": a.job.token} for a in attempts
        ]
        body = {"worker_id": self._worker_id, "lease_ms": round(self._lease * 1000), "jobs": jobs}
        asked_at = time.monotonic()
        try:
            answer = self._transport.post(
                "/jobs/renew",
                encode(body),
                timeout=max(self._lease / RENEWALS_PER_LEASE, 1.0),
                repeatable=True,
            )
        except (Unavailable, ApiError) as error:
            logger.warning("%d leases not renewed: %s", len(attempts), error)
            return False
        except FlowgateError as error:
            logger.error("%d leases not renewed: %s", len(attempts), error)
            return False
        self._backoff.reset()
        self._take(attempts, answer, asked_at + self._lease)
        return True

    def _take(self, attempts: Sequence[Attempt], answer: Any, deadline: float) -> None:
        told = {(str(j["run_id"]), str(j["step"]), str(j["token"])): j for j in answer["jobs"]}
        for attempt in attempts:
            job = attempt.job
            found = told.get((job.run_id, job.step, job.token))
            if found is None:
                continue
            stop = found.get("stop")
            if found.get("held") and stop is None:
                attempt.deadline = max(attempt.deadline, deadline)
            elif not attempt.is_settling:
                # While its outcome is on its way, the answer to that says what became of it.
                attempt.is_held = False
                attempt.stop("cancelled" if stop == "cancelled" else "lease_lost")

    def _rest(self, renew_at: float) -> float:
        now = time.monotonic()
        times = [renew_at]
        for attempt in self._held():
            if attempt.stop_reason is None:
                times.append(attempt.deadline)
                if attempt.timeout_at is not None:
                    times.append(attempt.timeout_at)
        return max(min(times) - now, 0.0)


def stop_late(attempts: Sequence[Attempt], now: float) -> bool:
    """Stops those whose lease or timeout is over; whether there was one with a timeout."""
    timed_out = False
    for attempt in attempts:
        if attempt.stop_reason is not None or attempt.is_settling:
            continue
        if attempt.deadline <= now:
            attempt.is_held = False
            attempt.stop("lease_lost")
        elif attempt.timeout_at is not None and attempt.timeout_at <= now:
            attempt.stop("timed_out")
            timed_out = True
    return timed_out
