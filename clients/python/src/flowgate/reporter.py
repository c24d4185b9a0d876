"""Tells the server what became of attempts, with patience while it is away.

A lease is what counts: as long as it holds, a report is sent again and again; once it is over,
somebody else may have the job and the report would be refused.
"""

from __future__ import annotations

import logging
import threading
import time

from .attempt import ERROR_BYTES_MAX, Attempt, cut
from .errors import ApiError, FlowgateError, HandlerError, Stopped, Unavailable
from .transport import Backoff, Transport, encode, segment

logger = logging.getLogger("flowgate")

CALL_TIMEOUT = 10.0
LOG_CALL_TIMEOUT = 5.0


class Reporter:
    """Sends reports. Every thread of the worker uses it."""

    def __init__(self, transport: Transport, ended: threading.Event) -> None:
        self._transport = transport
        # Set when the worker waits for nothing any more.
        self._ended = ended

    def complete(self, attempt: Attempt, result: str) -> None:
        """Reports success, with all that the attempt handed over."""
        attempt.is_settling = True
        with attempt.sending_logs:
            logs = ",".join(self._last_logs(attempt))
            body = f'{{{attempt.completion(result)},"logs":[{logs}]}}'
            try:
                self._until_lease_ends(attempt, "complete", body)
            except Dropped as dropped:
                logger.warning("%s: the result is dropped: %s", attempt.job, dropped)
                return
            except ApiError as error:
                refusal = HandlerError(f"the server refused the result: {error}")
            else:
                return
        self.fail(attempt, refusal)

    def fail(self, attempt: Attempt, error: HandlerError) -> None:
        """Reports a failure."""
        attempt.is_settling = True
        report: dict[str, object] = {
            "token": attempt.job.token,
            "message": cut(error.message, ERROR_BYTES_MAX) or "it failed without a word",
            "retry": error.retry,
        }
        if error.retry_after is not None:
            report["retry_after_ms"] = round(error.retry_after * 1000)
        with attempt.sending_logs:
            logs = ",".join(self._last_logs(attempt))
            body = f'{encode(report)[:-1]},"logs":[{logs}]}}'
            try:
                self._until_lease_ends(attempt, "fail", body)
            except Dropped as dropped:
                logger.warning("%s: the failure is dropped: %s", attempt.job, dropped)
            except ApiError as refused:
                logger.error("%s: the server refused the failure: %s", attempt.job, refused)

    def release(self, attempt: Attempt, timeout: float) -> None:
        """Hands the job back, once: if that fails, the lease ends by itself."""
        attempt.is_held = False
        self.send_logs(attempt, timeout)
        try:
            self._send(attempt, "release", encode({"token": attempt.job.token}), timeout)
        except FlowgateError as error:
            logger.warning("%s: not handed back, its lease will end: %s", attempt.job, error)

    def emit_now(self, attempt: Attempt, emission: str) -> None:
        """Sends an event of an attempt that goes on."""
        body = f'{{"token":{encode(attempt.job.token)},{emission[1:]}'
        try:
            self._until_lease_ends(attempt, "emit", body)
        except Dropped as dropped:
            attempt.is_held = False
            attempt.stop("cancelled" if dropped.is_run_over else "lease_lost")
            raise Stopped(attempt.stop_reason or "lease_lost") from dropped

    def send_logs(self, attempt: Attempt, timeout: float = LOG_CALL_TIMEOUT) -> None:
        """Sends the log lines that wait; those that no server takes wait for the next time."""
        # Whoever holds it sends them.
        if not attempt.sending_logs.acquire(timeout=timeout):
            return
        try:
            lines = attempt.take_logs()
            if lines and not self._send_lines(attempt, lines, timeout):
                attempt.put_back_logs(lines)
        finally:
            attempt.sending_logs.release()

    def _last_logs(self, attempt: Attempt) -> list[str]:
        """The lines that go with the outcome; where there are more, the others go before it."""
        while True:
            lines = attempt.take_logs()
            if not attempt.has_logs():
                return lines
            if not self._send_lines(attempt, lines, LOG_CALL_TIMEOUT):
                logger.warning("%s: %d log lines are dropped", attempt.job, len(lines))

    def _send_lines(self, attempt: Attempt, lines: list[str], timeout: float) -> bool:
        """Sends log lines; whether they need not be sent again."""
        body = f'{{"token":{encode(attempt.job.token)},"lines":[{",".join(lines)}]}}'
        try:
            self._send(attempt, "log", body, timeout)
        except Unavailable:
            return False
        except ApiError as error:
            if error.is_transient:
                return False
            logger.info("%s: log lines are dropped: %s", attempt.job, error)
        return True

    def _until_lease_ends(self, attempt: Attempt, verb: str, body: str) -> None:
        """Sends a report until it is taken or refused, or the lease is over."""
        backoff = Backoff()
        while True:
            left = attempt.deadline - time.monotonic()
            problem: FlowgateError
            try:
                self._send(attempt, verb, body, max(min(CALL_TIMEOUT, left), 1.0))
                return
            except Unavailable as error:
                problem, pause = error, backoff.pause()
            except ApiError as error:
                if error.status in (404, 409):
                    raise Dropped(error, error.code == "run_terminal") from error
                if not error.is_transient:
                    raise
                problem, pause = error, backoff.pause(error.retry_after)
            if time.monotonic() + pause >= attempt.deadline:
                raise Dropped(f"its lease is over, and {problem}", False) from problem
            if self._ended.wait(pause):
                raise Dropped(f"the worker has ended, and {problem}", False) from problem

    def _send(self, attempt: Attempt, verb: str, body: str, timeout: float) -> None:
        job = attempt.job
        path = f"/jobs/{segment(job.run_id)}/{segment(job.step)}/{verb}"
        self._transport.post(path, body, timeout=timeout, repeatable=True)


class Dropped(Exception):
    """The report counts no more: the job is somebody else's, or nobody's."""

    def __init__(self, why: object, is_run_over: bool) -> None:
        super().__init__(str(why))
        self.is_run_over = is_run_over
