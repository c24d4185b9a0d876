"""One attempt at a step, as the worker keeps it."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import ContextError, Stopped
from .transport import encode

Level = Literal["debug", "info", "warn", "error"]
StopReason = Literal["cancelled", "lease_lost", "timed_out", "shutdown"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warn", "error")

# The limits of the engine; what is over them is refused here, before it is kept.
PAYLOAD_BYTES_MAX = 1 << 20
STATE_VALUE_BYTES_MAX = 64 << 10
EMITS_MAX = 10_000
STATE_KEYS_MAX = 256
LOG_LINE_BYTES_MAX = 8 << 10
ERROR_BYTES_MAX = 4 << 10
# Log lines that wait to be sent; later ones are counted, not kept.
LOG_LINES_MAX = 1_000
LOG_LINES_PER_CALL_MAX = 500
LOG_BYTES_PER_CALL_MAX = 256 << 10
# Bytes of all that one attempt hands over; with result and log lines within what the server reads.
OUTPUT_BYTES_MAX = 14 << 20


@dataclass(frozen=True)
class Job:
    """A job as the server hands it out."""

    run_id: str
    flow: str
    revision: str
    step: str
    worker: str
    attempt: int
    token: str
    key: str
    input: Any
    state: Mapping[str, Any]
    lease: float
    timeout: float | None
    traceparent: str | None

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> Job:
        """Reads a job of a claim's answer."""
        timeout_ms = wire.get("timeout_ms")
        return cls(
            run_id=str(wire["run_id"]),
            flow=str(wire["flow"]),
            revision=str(wire["revision"]),
            step=str(wire["step"]),
            worker=str(wire["worker"]),
            attempt=int(wire["attempt"]),
            token=str(wire["token"]),
            key=str(wire["key"]),
            input=wire.get("input"),
            state=wire.get("state") or {},
            lease=int(wire["lease_ms"]) / 1000,
            timeout=None if timeout_ms is None else int(timeout_ms) / 1000,
            traceparent=wire.get("traceparent"),
        )

    def __str__(self) -> str:
        return f"{self.flow}/{self.step} of run {self.run_id}, attempt {self.attempt}"


class Attempt:
    """What an attempt hands over, and whether it may go on. Any thread may use it."""

    def __init__(self, job: Job, send_now: Callable[[Attempt, str], None]) -> None:
        now = time.monotonic()
        self.job = job
        self.deadline = now + job.lease
        self.timeout_at = None if job.timeout is None else now + job.timeout
        # Whether renewals name it, and whether its outcome is on its way.
        self.is_held = True
        self.is_settling = False
        # Whoever sends its log lines holds this, so that they keep their order.
        self.sending_logs = threading.Lock()
        self.stopped = threading.Event()
        self._send_now = send_now
        self._lock = threading.Lock()
        self._stop_reason: StopReason | None = None
        self._on_stop: list[Callable[[], None]] = []
        self._is_over = False
        self._emits: list[str] = []
        self._state: dict[str, str] = {}
        self._output_bytes = 0
        self._logs: deque[str] = deque()
        self._logs_dropped = 0

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it must stop; `None` while it may go on."""
        return self._stop_reason

    def stop(self, reason: StopReason) -> bool:
        """Tells the handler to stop; whether it was this call that stopped it.

        The first reason stays, and a handler that has ended is not stopped any more: either its
        outcome is reported or whoever stopped it decides what becomes of the job, never both.
        """
        with self._lock:
            if self._stop_reason is not None or self._is_over:
                return False
            self._stop_reason = reason
            listeners, self._on_stop = self._on_stop, []
        self.stopped.set()
        for listener in listeners:
            listener()
        return True

    def on_stop(self, listener: Callable[[], None]) -> None:
        """Calls the listener when the attempt must stop, at once if it must already."""
        with self._lock:
            if self._stop_reason is None:
                self._on_stop.append(listener)
                return
        listener()

    def check(self) -> None:
        """Raises if the attempt must stop."""
        if self._stop_reason is not None:
            raise Stopped(self._stop_reason)

    def emit(self, event: str, data: object) -> None:
        """Keeps an event for the outcome."""
        emitted = emission(event, data)
        with self._lock:
            self._check_open()
            if len(self._emits) >= EMITS_MAX:
                raise ContextError(f"an attempt emits at most {EMITS_MAX} events")
            self._count(len(emitted))
            self._emits.append(emitted)

    def emit_now(self, event: str, data: object) -> None:
        """Sends an event; returns when the server has it."""
        emitted = emission(event, data)
        with self._lock:
            self._check_open()
        self.check()
        self._send_now(self, emitted)

    def state_set(self, name: str, value: object) -> None:
        """Keeps a state value for the outcome."""
        encoded = payload(f"the state value {name!r}", value, STATE_VALUE_BYTES_MAX)
        with self._lock:
            self._check_open()
            if name not in self._state and len(self._state) >= STATE_KEYS_MAX:
                raise ContextError(f"an attempt sets at most {STATE_KEYS_MAX} state values")
            self._count(len(encoded) - len(self._state.get(name, "")))
            self._state[name] = encoded

    def state_get(self, name: str, default: Any) -> Any:
        """What this attempt set, else what the run had when the attempt began."""
        with self._lock:
            encoded = self._state.get(name)
        if encoded is not None:
            return json.loads(encoded)
        return self.job.state.get(name, default)

    def log(self, level: Level, text: str) -> None:
        """Keeps a log line to be sent."""
        if level not in LEVELS:
            raise ContextError(f"the level {level!r} is none of {', '.join(LEVELS)}")
        line = encode({"level": level, "text": cut(text, LOG_LINE_BYTES_MAX)})
        with self._lock:
            if self._is_over:
                return
            if len(self._logs) >= LOG_LINES_MAX:
                self._logs_dropped += 1
            else:
                self._logs.append(line)

    def take_logs(self) -> list[str]:
        """Takes the next lines to send, with a word about those that were dropped."""
        with self._lock:
            lines: list[str] = []
            size = 0
            while self._logs and len(lines) < LOG_LINES_PER_CALL_MAX:
                size += len(self._logs[0])
                if lines and size > LOG_BYTES_PER_CALL_MAX:
                    break
                lines.append(self._logs.popleft())
            if self._logs_dropped and not self._logs:
                text = f"{self._logs_dropped} log lines were dropped: they came too fast"
                lines.append(encode({"level": "warn", "text": text}))
                self._logs_dropped = 0
            return lines

    def put_back_logs(self, lines: list[str]) -> None:
        """Puts lines back that could not be sent."""
        with self._lock:
            self._logs.extendleft(reversed(lines))
            while len(self._logs) > LOG_LINES_MAX:
                self._logs.pop()
                self._logs_dropped += 1

    def has_logs(self) -> bool:
        """Whether lines wait to be sent."""
        with self._lock:
            return bool(self._logs) or self._logs_dropped > 0

    def close(self) -> None:
        """The handler has ended: what it does from here on is refused."""
        with self._lock:
            self._is_over = True

    def completion(self, result: str) -> str:
        """The body of `complete`, without log lines; the attempt is closed."""
        with self._lock:
            emits = ",".join(self._emits)
            state = ",".join(f"{encode(name)}:{value}" for name, value in self._state.items())
        token = encode(self.job.token)
        return f'"token":{token},"emits":[{emits}],"state":{{{state}}},"result":{result}'

    def _count(self, size: int) -> None:
        if self._output_bytes + size > OUTPUT_BYTES_MAX:
            raise ContextError(f"an attempt hands over at most {OUTPUT_BYTES_MAX} bytes")
        self._output_bytes += size

    def _check_open(self) -> None:
        if self._is_over:
            raise ContextError("the attempt has ended, and its output is fixed")


def emission(event: str, data: object) -> str:
    """An event as the server takes it."""
    encoded = payload(f"the data of {event!r}", data, PAYLOAD_BYTES_MAX)
    return f'{{"event":{encode(event)},"data":{encoded}}}'


def payload(what: str, value: object, bytes_max: int) -> str:
    """A value as JSON text, if it can be kept."""
    try:
        encoded = encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ContextError(f"{what} cannot be written as JSON: {error}") from error
    # The text is ASCII, so its letters are its bytes; the server counts those of UTF-8, never more.
    if len(encoded) > bytes_max and len(utf8(value)) > bytes_max:
        raise ContextError(f"{what} has {len(utf8(value))} bytes; the limit is {bytes_max}")
    return encoded


def utf8(value: object) -> bytes:
    """A value as the JSON text with the fewest bytes."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="surrogatepass")


def cut(text: str, bytes_max: int) -> str:
    """A text within a limit; what is over it is cut off and said so."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    mark = " … (cut)"
    kept = encoded[: bytes_max - len(mark.encode())].decode(errors="ignore")
    return kept + mark
