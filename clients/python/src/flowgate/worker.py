"""A worker: claims jobs, executes their handlers, and reports.

    claim (long poll, only for free slots) -> handler on a slot -> complete | fail
                                   \\-> renewals, all held jobs in one call

- A server that is away ends nothing: handlers go on, claims are tried again with growing pauses,
  and outcomes are sent again until the lease is over.
- A lost lease or a cancelled run stops the handler, and its outcome is dropped.
- A stop (SIGTERM, SIGINT, `stop()`) claims no more, lets handlers end within the grace, and hands
  the rest back without counting the attempt. A second signal has its usual effect.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import logging
import os
import re
import signal
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from types import FrameType
from typing import Any, TypeVar, cast

from .attempt import PAYLOAD_BYTES_MAX, Attempt, Job, payload
from .context import AsyncContext, Context
from .errors import ApiError, ContextError, FlowgateError, HandlerError, Stopped, Unavailable
from .leases import Renewer
from .reporter import Reporter
from .transport import Backoff, Call, Transport, encode

logger = logging.getLogger("flowgate")

Handler = Callable[[Context, Any], object]
AsyncHandler = Callable[[AsyncContext, Any], Awaitable[object]]
AnyHandler = TypeVar("AnyHandler", bound="Handler | AsyncHandler")

SLOTS_MAX = 1_000
CLAIM_MAX = 100
LEASE_MIN, LEASE_MAX = 1.0, 600.0
# Seconds that a claim waits at the server for a job.
CLAIM_WAIT = 20.0
# Seconds beyond that until the server counts as one that does not answer.
CLAIM_MARGIN = 10.0
# An empty answer that comes sooner than this did not wait, and is not asked again at once.
CLAIM_WAIT_MIN = 0.5
# Seconds that a claim under way gets when the worker stops: under load its answer is on its way.
CLAIM_GRACE = 0.25
# Seconds between two sendings of the log lines of running attempts.
LOG_PAUSE = 1.0
# Seconds that handing back may take in all.
RELEASE_TIME = 5.0
JOIN_TIME = 2.0
LOOP_GRACE = 0.1

IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Worker:
    """Executes steps whose flow says `run: {worker: NAME}`.

    >>> worker = Worker("http://127.0.0.1:7420")
    >>> @worker.step("score")
    ... def score(ctx, input):
    ...     ctx.emit("scored", {"points": 7})
    >>> worker.run()  # doctest: +SKIP
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        token: str | None = None,
        slots: int = 10,
        queues: Sequence[str] | None = None,
        worker_id: str | None = None,
        lease: float = 30.0,
        grace: float = 20.0,
    ) -> None:
        if not 1 <= slots <= SLOTS_MAX:
            raise ValueError(f"slots are 1 to {SLOTS_MAX}, not {slots}")
        if not LEASE_MIN <= lease <= LEASE_MAX:
            raise ValueError(f"a lease is {LEASE_MIN} to {LEASE_MAX} seconds, not {lease}")
        if not 0 <= grace < float("inf"):
            raise ValueError(f"the grace is a number of seconds, 0 or more, not {grace}")
        if queues is not None and not queues:
            raise ValueError("name at least one queue, or leave `queues` out")
        for queue in queues or ():
            check_name("queue", queue)
        self.worker_id = worker_id if worker_id is not None else new_worker_id()
        check_name("worker id", self.worker_id)
        self._slots = slots
        self._queues = None if queues is None else list(queues)
        self._lease = lease
        self._grace = grace
        # One connection for each slot, and for the claim, the renewal, the log lines and a spare.
        self._transport = Transport(server, token, idle_max=slots + 4)
        self._handlers: dict[str, Handler | AsyncHandler] = {}
        # A queue, since a signal handler may put into it whatever it interrupted; an event may not.
        self._stop_asked: SimpleQueue[None] = SimpleQueue()
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._reporter = Reporter(self._transport, self._ended)
        self._renewer = Renewer(self._transport, self.worker_id, lease, self._running)
        self._changed = threading.Condition()
        self._attempts: set[Attempt] = set()
        self._waiting: SimpleQueue[Attempt | None] = SimpleQueue()
        self._threads = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._claim: Call | None = None
        self._fatal: FlowgateError | None = None
        self._has_run = False

    def step(self, name: str) -> Callable[[AnyHandler], AnyHandler]:
        """Registers the decorated function as the handler of this worker name."""
        check_name("worker", name)
        if name in self._handlers:
            raise ValueError(f"the worker {name!r} has a handler already")

        def register(handler: AnyHandler) -> AnyHandler:
            if self._has_run:
                raise RuntimeError("register every handler before run()")
            self._handlers[name] = handler
            return handler

        return register

    def run(self) -> None:
        """Works until it is told to stop. Raises if the server refuses the very first claim."""
        if not self._handlers:
            raise ValueError("the worker has no handler: decorate one with @worker.step(NAME)")
        if self._has_run:
            raise RuntimeError("a worker runs once: make a new one")
        self._has_run = True
        previous = self._listen_to_signals()
        try:
            claimer = start_thread("claim", self._claim_loop)
            renewer = start_thread("renew", self._renewer.run)
            logs = start_thread("logs", self._logs_loop)
            self._stop_asked.get()
            self._stop.set()
            # A second signal has its usual effect.
            restore_signals(previous)
            self._drain(claimer)
        finally:
            self._stop.set()
            self._ended.set()
            self._renewer.end()
            restore_signals(previous)
            self._close()
        for thread in (renewer, logs):
            thread.join(JOIN_TIME)
        if self._fatal is not None:
            raise self._fatal

    def stop(self) -> None:
        """Tells `run` to stop as at a signal. Any thread and any signal handler may call it."""
        self._stop_asked.put(None)

    # --- claiming -------------------------------------------------------------------------------

    def _claim_loop(self) -> None:
        backoff = Backoff()
        is_known = False
        while (free := self._wait_for_slots()) > 0:
            try:
                asked_at = time.monotonic()
                jobs = self._claim_jobs(min(free, CLAIM_MAX))
            except Unavailable as error:
                pause = backoff.pause()
                self._say_pause(error, pause)
            except ApiError as error:
                if not error.is_transient and not is_known:
                    self._fatal = error
                    self.stop()
                    return
                pause = backoff.pause(error.retry_after)
                self._say_pause(error, pause)
            except (FlowgateError, KeyError, TypeError, ValueError) as error:
                pause = backoff.pause()
                logger.error("the answer to a claim cannot be read: %r", error)
            else:
                is_known = True
                waited = time.monotonic() - asked_at
                if jobs or waited >= CLAIM_WAIT_MIN:
                    backoff.reset()
                    pause = 0.0
                else:
                    pause = backoff.pause()
                self._begin(jobs)
            self._stop.wait(pause)

    def _wait_for_slots(self) -> int:
        """The number of free slots, as soon as there is one; 0 when the worker stops."""
        with self._changed:
            while not self._stop.is_set():
                free = self._slots - len(self._attempts)
                if free > 0:
                    return free
                self._changed.wait(LOG_PAUSE)
        return 0

    def _claim_jobs(self, count: int) -> list[Job]:
        body: dict[str, object] = {
            "worker_id": self.worker_id,
            "workers": sorted(self._handlers),
            "max": count,
            "wait_ms": round(CLAIM_WAIT * 1000),
            "lease_ms": round(self._lease * 1000),
        }
        if self._queues is not None:
            body["queues"] = self._queues
        call = self._claim = Call()
        answer = self._transport.post(
            "/jobs/claim",
            encode(body),
            timeout=CLAIM_WAIT + CLAIM_MARGIN,
            repeatable=True,
            call=call,
        )
        return [Job.read(job) for job in answer["jobs"]]

    def _say_pause(self, error: FlowgateError, pause: float) -> None:
        if not self._stop.is_set():
            logger.warning("no jobs claimed, next try in %.1f s: %s", pause, error)

    def _begin(self, jobs: Sequence[Job]) -> None:
        """Gives jobs to slots; hands back what the worker does not begin any more."""
        for job in jobs:
            attempt = Attempt(job, self._reporter.emit_now)
            if self._stop.is_set() or job.worker not in self._handlers:
                self._reporter.release(attempt, RELEASE_TIME)
                continue
            with self._changed:
                self._attempts.add(attempt)
                needs_thread = self._threads < len(self._attempts)
                self._threads += int(needs_thread)
            if needs_thread:
                start_thread("slot", self._slot_loop)
            self._waiting.put(attempt)
            if attempt.timeout_at is not None:
                self._renewer.look()

    # --- executing ------------------------------------------------------------------------------

    def _slot_loop(self) -> None:
        while (attempt := self._waiting.get()) is not None:
            try:
                self._execute(attempt)
            except Exception:
                logger.exception("%s: the attempt is dropped, its lease will end", attempt.job)
            finally:
                attempt.is_held = False
                with self._changed:
                    self._attempts.discard(attempt)
                    self._changed.notify_all()

    def _execute(self, attempt: Attempt) -> None:
        try:
            returned = self._call(attempt)
            result = payload("the result", returned, PAYLOAD_BYTES_MAX)
            failure: HandlerError | None = None
        except HandlerError as error:
            failure = error
        except (Exception, SystemExit) as error:
            failure = HandlerError(describe(error))
            if attempt.stop_reason is None and not isinstance(error, (ContextError, Stopped)):
                attempt.log("error", "".join(traceback.format_exception(error)).rstrip())
        attempt.close()
        if attempt.stop_reason is not None:
            # One that is handed back says so itself.
            if attempt.stop_reason != "shutdown":
                logger.info("%s: dropped: %s", attempt.job, Stopped(attempt.stop_reason))
        elif failure is not None:
            logger.info("%s: failed: %s", attempt.job, failure.message)
            self._reporter.fail(attempt, failure)
        else:
            self._reporter.complete(attempt, result)

    def _call(self, attempt: Attempt) -> object:
        handler = self._handlers[attempt.job.worker]
        if not is_async(handler):
            returned = cast(Handler, handler)(Context(attempt), attempt.job.input)
            if inspect.iscoroutine(returned):
                returned.close()
                raise HandlerError.fatal("the handler returned a coroutine: make it an `async def`")
            return returned
        loop = self._event_loop()
        context = AsyncContext(attempt)

        async def drive() -> object:
            task = asyncio.current_task()
            assert task is not None, "a coroutine on a loop is in a task"
            attempt.on_stop(lambda: call_on(loop, task.cancel))
            return await cast(AsyncHandler, handler)(context, attempt.job.input)

        try:
            return asyncio.run_coroutine_threadsafe(drive(), loop).result()
        except concurrent.futures.CancelledError as error:
            raise HandlerError("the handler was cancelled") from error

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of all `async def` handlers, on a thread of its own."""
        with self._changed:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                start_thread("loop", functools.partial(run_loop, self._loop))
            return self._loop

    def _logs_loop(self) -> None:
        while not self._ended.wait(LOG_PAUSE):
            for attempt in self._running():
                if attempt.is_held and not attempt.is_settling and attempt.has_logs():
                    self._reporter.send_logs(attempt)

    def _running(self) -> list[Attempt]:
        with self._changed:
            return list(self._attempts)

    # --- stopping -------------------------------------------------------------------------------

    def _drain(self, claimer: threading.Thread) -> None:
        began = time.monotonic()
        with self._changed:
            self._changed.notify_all()
        claimer.join(CLAIM_GRACE)
        if claimer.is_alive() and self._claim is not None:
            self._claim.abort()
        with self._changed:
            until = began + self._grace
            while self._attempts and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            rest = list(self._attempts)
        until = time.monotonic() + RELEASE_TIME
        for attempt in rest:
            if not attempt.stop("shutdown"):
                continue
            left = until - time.monotonic()
            if left <= 0:
                logger.warning("%s: not handed back, its lease will end", attempt.job)
                continue
            logger.info("%s: handed back, it did not end within the grace", attempt.job)
            self._reporter.release(attempt, left)
        claimer.join(JOIN_TIME)

    def _close(self) -> None:
        for _ in range(self._threads):
            self._waiting.put(None)
        if self._loop is not None:
            loop = self._loop
            # Those that were cancelled get a moment for what they do at the end.
            call_on(loop, lambda: loop.call_later(LOOP_GRACE, loop.stop))
        self._transport.close()

    def _listen_to_signals(self) -> dict[signal.Signals, Any]:
        """Stops at SIGTERM and SIGINT; only the main thread of a program can listen to them."""
        if threading.current_thread() is not threading.main_thread():
            return {}

        def on_signal(number: int, _: FrameType | None) -> None:
            restore_signals(previous)
            self.stop()

        previous: dict[signal.Signals, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            previous[number] = signal.signal(number, on_signal)
        return previous


def restore_signals(previous: dict[signal.Signals, Any]) -> None:
    """Gives signals back to whoever had them; the second time does nothing."""
    while previous:
        number, handler = previous.popitem()
        # A handler that is not Python's own cannot be put back.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def start_thread(name: str, work: Callable[[], object]) -> threading.Thread:
    """A thread that does not keep the process from ending."""
    thread = threading.Thread(target=work, name=f"flowgate-{name}", daemon=True)
    thread.start()
    return thread


def run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Runs a loop until it is stopped, and closes it."""
    loop.run_forever()
    loop.close()


def call_on(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
    """Calls on the loop's thread, unless the loop has ended."""
    try:
        loop.call_soon_threadsafe(work)
    except RuntimeError:
        pass


def is_async(handler: object) -> bool:
    """Whether a handler is an `async def`, or an object that is called as one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)
    )


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text = str(error)
    name = type(error).__name__
    if isinstance(error, ContextError):
        return text
    return f"{name}: {text}" if text else name


def check_name(what: str, name: str) -> None:
    """Refuses what the server would refuse."""
    if not IDENTIFIER.fullmatch(name) or ".." in name:
        raise ValueError(
            f"{name!r} cannot name a {what}: a letter or digit, then letters, digits, `.`, `_`, `-`;"
            " at most 128 in all and no `..`"
        )


def new_worker_id() -> str:
    """A name that no other worker has: the host, the process and some chance."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname()).strip("-")[:64] or "worker"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
