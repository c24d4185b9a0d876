"""The worker against a server that keeps the contract, and breaks it on command."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from typing import Any

from flowgate import ApiError, AsyncContext, Context, ContextError, HandlerError, Stopped, Worker
from tests.fake_server import PATIENCE, FakeServer, refusal

SOURCE = Path(__file__).resolve().parents[1] / "src"


class WorkerTest(unittest.TestCase):
    """A server, and a worker on a thread that each test ends."""

    def setUp(self) -> None:
        logging.getLogger("flowgate").setLevel(logging.CRITICAL)
        self.server = FakeServer()
        self.addCleanup(self.server.stop)
        self.failure: BaseException | None = None

    def begin(self, worker: Worker) -> threading.Thread:
        def run() -> None:
            try:
                worker.run()
            except BaseException as error:
                self.failure = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.addCleanup(self.end, worker, thread)
        return thread

    def end(self, worker: Worker, thread: threading.Thread) -> None:
        worker.stop()
        thread.join(PATIENCE)
        self.assertFalse(thread.is_alive(), "the worker did not stop")


class Executing(WorkerTest):
    def test_a_handler_gets_its_facts_and_what_it_hands_over_arrives(self) -> None:
        job = self.server.add("score", {"order": 7}, state={"seen": 1})
        worker = Worker(self.server.url, token="secret")
        facts: list[object] = []

        @worker.step("score")
        def score(ctx: Context, input: Any) -> object:
            facts.extend([ctx.run_id, ctx.flow, ctx.revision, ctx.step, ctx.attempt, ctx.key])
            facts.extend([ctx.traceparent, ctx.input == input, ctx.cancelled, ctx.stop_reason])
            facts.extend([ctx.state.get("seen"), ctx.state.get("none", "default")])
            ctx.state.set("points", [1, 2])
            facts.append(ctx.state.get("points"))
            ctx.emit_now("began", {"at": 0})
            ctx.emit("scored", {"order": input["order"]})
            ctx.log("info", "héllo")
            ctx.heartbeat()
            return {"points": 7}

        self.begin(worker)
        self.server.until(lambda: job.outcome is not None)
        place = f"00-{1:032x}-{1:016x}-01"
        expected = ["run-1", "f", "r1", "score", 1, "run-1/score/1", place, True, False, None, 1]
        self.assertEqual(facts, [*expected, "default", [1, 2]])
        assert job.outcome is not None
        self.assertEqual(job.outcome["emits"], [{"event": "scored", "data": {"order": 7}}])
        self.assertEqual(job.outcome["state"], {"points": [1, 2]})
        self.assertEqual(job.outcome["result"], {"points": 7})
        self.assertEqual(job.emitted, [{"event": "began", "data": {"at": 0}}])
        self.assertEqual(job.logs, ["info: héllo"])
        claim = self.server.of("claim")[0]
        self.assertEqual(claim.headers["authorization"], "Bearer secret")
        self.assertEqual(claim.body["worker_id"], worker.worker_id)
        self.assertEqual(claim.body["workers"], ["score"])
        self.assertNotIn("queues", claim.body)

    def test_async_handlers_run_side_by_side_on_one_loop(self) -> None:
        jobs = [self.server.add("meet") for _ in range(3)]
        worker = Worker(self.server.url, slots=3, queues=["meet", "other"])
        here: list[str] = []
        all_here: list[asyncio.Event] = []

        @worker.step("meet")
        async def meet(ctx: AsyncContext, input: Any) -> int:
            if not all_here:
                all_here.append(asyncio.Event())
            here.append(ctx.run_id)
            await ctx.emit_now("here")
            if len(here) == 3:
                all_here[0].set()
            await all_here[0].wait()
            return len(here)

        self.begin(worker)
        self.server.until(lambda: all(job.outcome is not None for job in jobs))
        self.assertEqual([job.outcome["result"] for job in jobs if job.outcome], [3, 3, 3])
        self.assertEqual([len(job.emitted) for job in jobs], [1, 1, 1])
        self.assertEqual(self.server.of("claim")[0].body["queues"], ["meet", "other"])

    def test_only_free_slots_are_claimed_for(self) -> None:
        jobs = [self.server.add("hold") for _ in range(5)]
        worker = Worker(self.server.url, slots=2)
        go = threading.Semaphore(0)
        most: list[int] = []
        now: list[int] = []

        @worker.step("hold")
        def hold(ctx: Context, input: Any) -> None:
            now.append(1)
            most.append(len(now))
            go.acquire()
            now.pop()

        self.begin(worker)
        self.server.until(lambda: sum(job.attempt for job in jobs) == 2, "two claims")
        self.assertEqual([request.body["max"] for request in self.server.of("claim")], [2])
        go.release(5)
        self.server.until(lambda: all(job.outcome is not None for job in jobs))
        self.assertLessEqual(max(most), 2)
        self.assertTrue(all(request.body["max"] <= 2 for request in self.server.of("claim")))

    def test_a_failure_says_whether_and_when_to_try_again(self) -> None:
        worker = Worker(self.server.url, slots=1)
        rows: list[tuple[str, Exception, dict[str, object]]] = [
            ("fatal", HandlerError.fatal("declined"), {"message": "declined", "retry": False}),
            ("plain", HandlerError("busy"), {"message": "busy", "retry": True}),
            (
                "later",
                HandlerError("busy", retry_after=1.5),
                {"message": "busy", "retry": True, "retry_after_ms": 1500},
            ),
            ("bug", KeyError("x"), {"message": "KeyError: 'x'", "retry": True}),
            ("long", ValueError("é" * 5000), {"retry": True}),
        ]
        raised = {name: error for name, error, _ in rows}
        tried: set[str] = set()

        @worker.step("fail")
        def fail(ctx: Context, input: Any) -> None:
            ctx.emit("never", {})
            if input not in tried:
                tried.add(input)
                raise raised[input]

        jobs = [self.server.add("fail", name) for name, _, _ in rows]
        self.begin(worker)
        self.server.until(lambda: all(job.failures for job in jobs))
        for job, (name, _, expected) in zip(jobs, rows):
            with self.subTest(name):
                failure = {k: v for k, v in job.failures[0].items() if k in expected}
                self.assertEqual(failure, expected)
                self.assertNotIn("emits", job.failures[0])
                self.assertLessEqual(len(job.failures[0]["message"].encode()), 4096)
        self.assertIn("Traceback", jobs[3].logs[0])

    def test_what_cannot_be_kept_fails_the_attempt_with_the_reason(self) -> None:
        worker = Worker(self.server.url)
        rows: dict[str, tuple[object, str]] = {
            "set": ({1, 2}, "the result cannot be written as JSON"),
            "nan": (float("nan"), "the result cannot be written as JSON"),
            "large": ("x" * (1 << 20), "the result has 1048578 bytes; the limit is 1048576"),
        }

        @worker.step("give")
        def give(ctx: Context, input: Any) -> object:
            return rows[input][0]

        jobs = {name: self.server.add("give", name) for name in rows}
        self.begin(worker)
        self.server.until(lambda: all(job.failures for job in jobs.values()))
        for name, (_, message) in rows.items():
            self.assertIn(message, jobs[name].failures[0]["message"])

    def test_a_result_that_the_server_refuses_becomes_a_failure(self) -> None:
        job = self.server.add("odd")
        self.server.plan("complete", refusal(422, "field_invalid"))
        worker = Worker(self.server.url)

        @worker.step("odd")
        def odd(ctx: Context, input: Any) -> None:
            ctx.emit("undeclared", {})

        self.begin(worker)
        self.server.until(lambda: bool(job.failures))
        self.assertIn("the server refused the result", job.failures[0]["message"])

    def test_a_context_that_is_kept_too_long_refuses(self) -> None:
        job = self.server.add("leak")
        worker = Worker(self.server.url)
        kept: list[Context] = []

        @worker.step("leak")
        def leak(ctx: Context, input: Any) -> None:
            kept.append(ctx)

        self.begin(worker)
        self.server.until(lambda: job.outcome is not None)
        with self.assertRaisesRegex(ContextError, "has ended"):
            kept[0].emit("late", {})
        with self.assertRaisesRegex(ContextError, "has ended"):
            kept[0].emit_now("late", {})
        self.assertEqual(job.emitted, [])

    def test_log_lines_of_a_long_step_arrive_while_it_runs_and_too_many_are_counted(self) -> None:
        job = self.server.add("talk")
        worker = Worker(self.server.url)
        go = threading.Event()

        @worker.step("talk")
        def talk(ctx: Context, input: Any) -> None:
            ctx.log("warn", "early")
            go.wait()
            for number in range(1200):
                ctx.log("info", f"line {number}")

        self.begin(worker)
        self.server.until(lambda: job.logs == ["warn: early"], "a log line of a running step")
        self.assertIsNone(job.outcome)
        go.set()
        self.server.until(lambda: job.outcome is not None)
        self.assertEqual(job.logs[1], "info: line 0")
        self.assertEqual(len(job.logs), 1002)
        self.assertEqual(job.logs[-1], "warn: 200 log lines were dropped: they came too fast")

    def test_connections_are_kept(self) -> None:
        worker = Worker(self.server.url, slots=2)

        @worker.step("quick")
        def quick(ctx: Context, input: Any) -> None:
            pass

        jobs = [self.server.add("quick") for _ in range(50)]
        self.begin(worker)
        self.server.until(lambda: all(job.outcome is not None for job in jobs))
        self.assertLessEqual(self.server.connections, 6)


class Leases(WorkerTest):
    def test_one_call_renews_all_held_jobs_and_they_outlive_their_lease(self) -> None:
        jobs = [self.server.add("long") for _ in range(3)]
        worker = Worker(self.server.url, slots=3, lease=1.0)
        go = threading.Event()

        @worker.step("long")
        def long(ctx: Context, input: Any) -> None:
            go.wait()
            ctx.heartbeat()

        self.begin(worker)
        # Five renewals take longer than the lease.
        self.server.until(lambda: len(self.server.of("renew")) >= 5, "five renewals")
        go.set()
        self.server.until(lambda: all(job.outcome is not None for job in jobs))
        for request in self.server.of("renew")[:5]:
            self.assertEqual(len(request.body["jobs"]), 3)
            self.assertEqual(request.body["lease_ms"], 1000)
        self.assertEqual([job.attempt for job in jobs], [1, 1, 1])

    def test_a_fenced_result_is_dropped_and_the_worker_goes_on(self) -> None:
        job = self.server.add("slow")
        worker = Worker(self.server.url)
        taken = threading.Event()

        @worker.step("slow")
        def slow(ctx: Context, input: Any) -> None:
            taken.wait()

        @worker.step("next")
        def next_(ctx: Context, input: Any) -> str:
            return "done"

        self.begin(worker)
        self.server.until(lambda: job.attempt == 1)
        self.server.take_away(job)
        taken.set()
        self.server.until(lambda: len(self.server.of("complete")) == 1)
        follower = self.server.add("next")
        self.server.until(lambda: follower.outcome is not None)
        self.assertIsNone(job.outcome)
        self.assertEqual(job.failures, [])

    def test_a_cancelled_run_stops_both_kinds_of_handler_and_their_outcome_is_dropped(self) -> None:
        plain, coroutine = self.server.add("plain"), self.server.add("coroutine")
        worker = Worker(self.server.url, lease=1.0)
        ends: list[object] = []
        ended = threading.Semaphore(0)

        @worker.step("plain")
        def wait(ctx: Context, input: Any) -> None:
            ctx.wait_cancelled()
            ends.append(ctx.stop_reason)
            try:
                ctx.heartbeat()
            except Stopped as stopped:
                ends.append(stopped.reason)
            ended.release()

        @worker.step("coroutine")
        async def sleep(ctx: AsyncContext, input: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ends.append(ctx.cancelled)
                ended.release()

        self.begin(worker)
        self.server.until(lambda: plain.attempt == 1 and coroutine.attempt == 1)
        self.server.cancel(plain)
        self.server.cancel(coroutine)
        for _ in range(2):
            self.assertTrue(ended.acquire(timeout=PATIENCE))
        self.assertCountEqual(ends, ["cancelled", "cancelled", True])
        follower = self.server.add("plain")
        self.server.until(lambda: follower.attempt == 1)
        self.server.cancel(follower)
        self.assertEqual(self.server.of("complete") + self.server.of("fail"), [])

    def test_a_step_that_is_over_its_timeout_is_stopped_and_the_server_hears_of_it(self) -> None:
        job = self.server.add("late", timeout_ms=200)
        worker = Worker(self.server.url, lease=60.0)
        reasons: queue.Queue[object] = queue.Queue()

        @worker.step("late")
        def late(ctx: Context, input: Any) -> None:
            ctx.wait_cancelled()
            reasons.put(ctx.stop_reason)

        self.begin(worker)
        self.server.until(lambda: len(self.server.of("renew")) == 1, "a renewal at the timeout")
        # The thread of the handler may be told before the server is, and run after it.
        self.assertEqual(reasons.get(timeout=PATIENCE), "timed_out")
        self.assertIsNone(job.outcome)


class Outages(WorkerTest):
    def test_a_handler_goes_on_while_the_server_is_away_and_its_result_arrives(self) -> None:
        job = self.server.add("work")
        worker = Worker(self.server.url)
        begun, go = threading.Event(), threading.Event()

        @worker.step("work")
        def work(ctx: Context, input: Any) -> str:
            begun.set()
            go.wait()
            return "kept"

        self.begin(worker)
        self.assertTrue(begun.wait(PATIENCE))
        self.server.stop()
        go.set()
        self.server.start()
        self.server.until(lambda: job.outcome is not None, "the result after the outage")
        follower = self.server.add("work")
        self.server.until(lambda: follower.outcome is not None, "a claim after the outage")
        self.assertEqual(job.attempt, 1)

    def test_a_completion_whose_answer_is_lost_is_sent_again_and_counts_once(self) -> None:
        job = self.server.add("work")
        self.server.plan("complete", "cut")
        self.server.plan("complete", refusal(503, "store_unavailable"))
        worker = Worker(self.server.url)

        @worker.step("work")
        def work(ctx: Context, input: Any) -> None:
            pass

        self.begin(worker)
        self.server.until(lambda: len(self.server.of("complete")) == 3, "three completions")
        bodies = [request.body for request in self.server.of("complete")]
        self.assertEqual(bodies[0], bodies[1])
        self.assertEqual(bodies[0], bodies[2])
        self.assertEqual(job.attempt, 1)

    def test_the_lease_ends_by_the_workers_clock_when_no_server_answers(self) -> None:
        self.server.add("alone")
        worker = Worker(self.server.url, lease=1.0)
        reasons: list[object] = []
        begun, ended = threading.Event(), threading.Event()

        @worker.step("alone")
        def alone(ctx: Context, input: Any) -> None:
            begun.set()
            ctx.wait_cancelled()
            reasons.append(ctx.stop_reason)
            ended.set()

        self.begin(worker)
        self.assertTrue(begun.wait(PATIENCE))
        self.server.stop()
        self.assertTrue(ended.wait(PATIENCE))
        self.assertEqual(reasons, ["lease_lost"])

    def test_the_next_server_is_asked_when_one_fails(self) -> None:
        away = FakeServer()
        away.stop()
        worker = Worker([away.url, self.server.url])

        @worker.step("work")
        def work(ctx: Context, input: Any) -> None:
            pass

        job = self.server.add("work")
        self.begin(worker)
        self.server.until(lambda: job.outcome is not None)

    def test_a_server_that_does_not_let_claims_wait_is_not_asked_without_pause(self) -> None:
        self.server.answers_at_once = True
        worker = Worker(self.server.url)

        @worker.step("work")
        def work(ctx: Context, input: Any) -> None:
            pass

        self.begin(worker)
        self.server.until(lambda: len(self.server.of("claim")) == 4, "four claims")
        at = [request.at for request in self.server.of("claim")]
        self.assertGreater(at[3] - at[0], 0.1 + 0.2 + 0.4 - 0.05)

    def test_a_refusal_of_the_first_claim_ends_the_worker_with_the_reason(self) -> None:
        self.server.plan("claim", refusal(401, "token_invalid"))
        worker = Worker(self.server.url, token="wrong")

        @worker.step("work")
        def work(ctx: Context, input: Any) -> None:
            pass

        self.begin(worker).join(PATIENCE)
        assert isinstance(self.failure, ApiError)
        self.assertEqual(self.failure.code, "token_invalid")


class Stopping(WorkerTest):
    def test_a_stop_claims_no_more_and_lets_handlers_end(self) -> None:
        job = self.server.add("work")
        worker = Worker(self.server.url)
        go = threading.Event()

        @worker.step("work")
        def work(ctx: Context, input: Any) -> None:
            go.wait()

        thread = self.begin(worker)
        self.server.until(lambda: job.attempt == 1 and len(self.server.of("claim")) == 2)
        worker.stop()
        later = self.server.add("other")
        go.set()
        thread.join(PATIENCE)
        self.assertFalse(thread.is_alive())
        self.assertIsNotNone(job.outcome)
        self.assertEqual(later.attempt, 0)
        self.assertEqual(len(self.server.of("claim")), 2)
        self.assertEqual(self.server.of("release"), [])

    def test_what_does_not_end_within_the_grace_is_handed_back(self) -> None:
        plain, coroutine = self.server.add("plain"), self.server.add("coroutine")
        worker = Worker(self.server.url, grace=0.2)
        go = threading.Event()
        self.addCleanup(go.set)
        begun = threading.Semaphore(0)
        reasons: list[object] = []

        @worker.step("plain")
        def stubborn(ctx: Context, input: Any) -> str:
            ctx.log("info", "said before the end")
            begun.release()
            go.wait()
            return "too late"

        @worker.step("coroutine")
        async def sleep(ctx: AsyncContext, input: Any) -> None:
            begun.release()
            try:
                await asyncio.Event().wait()
            finally:
                reasons.append(ctx.stop_reason)

        thread = self.begin(worker)
        for _ in range(2):
            self.assertTrue(begun.acquire(timeout=PATIENCE))
        worker.stop()
        thread.join(PATIENCE)
        self.assertEqual([plain.releases, coroutine.releases], [1, 1])
        self.assertEqual([plain.attempt, coroutine.attempt], [0, 0])
        self.assertEqual(plain.logs, ["info: said before the end"])
        self.assertEqual(reasons, ["shutdown"])
        self.assertEqual(self.server.of("complete") + self.server.of("fail"), [])

    def process(self, body: str, *, grace: float) -> subprocess.Popen[bytes]:
        program = f"""
import sys, threading
from flowgate import Worker
worker = Worker({self.server.url!r}, grace={grace})
@worker.step("work")
def work(ctx, input):
    {body}
worker.run()
print("ended well", flush=True)
"""
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

        def end() -> None:
            child.kill()
            child.communicate()

        self.addCleanup(end)
        return child

    def test_a_signal_ends_the_process_well_once_its_work_is_done(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                job = self.server.add("work")
                # It ends once the server has heard that it must not wait longer.
                child = self.process("ctx.emit_now('began'); ctx.wait_cancelled(1.0)", grace=20)
                self.server.until(lambda: len(job.emitted) == 1)
                child.send_signal(number)
                out, _ = child.communicate(timeout=PATIENCE)
                self.assertEqual((child.returncode, out), (0, b"ended well\n"))
                self.assertIsNotNone(job.outcome)

    def test_a_second_signal_ends_the_process_at_once(self) -> None:
        job = self.server.add("work")
        child = self.process("ctx.emit_now('began'); threading.Event().wait()", grace=600)
        self.server.until(lambda: len(job.emitted) == 1)
        child.send_signal(signal.SIGTERM)
        # The first one is over when its claim is: signals that come together are one.
        began = time.monotonic()
        while child.poll() is None and time.monotonic() - began < PATIENCE:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
        self.assertEqual(child.returncode, -signal.SIGTERM)


class Wrong(unittest.TestCase):
    def test_wrong_settings_are_refused_with_the_reason(self) -> None:
        rows: list[tuple[dict[str, Any], str]] = [
            ({"server": "127.0.0.1:7420"}, "is not the URL of a server"),
            ({"server": "ftp://a"}, "is not the URL of a server"),
            ({"server": "http://a:99999"}, "is not the URL of a server"),
            ({"server": []}, "name at least one server"),
            ({"server": "http://user:pass@a"}, "has no user"),
            ({"slots": 0}, "slots are 1 to 1000"),
            ({"lease": 0.5}, "a lease is 1.0 to 600.0 seconds"),
            ({"grace": -1}, "the grace is"),
            ({"queues": []}, "name at least one queue"),
            ({"queues": ["a/b"]}, "cannot name a queue"),
            ({"worker_id": ""}, "cannot name a worker id"),
        ]
        for settings, message in rows:
            with self.subTest(settings):
                with self.assertRaisesRegex(ValueError, message):
                    Worker(**{"server": "http://a", **settings})

    def test_handlers_are_registered_once_and_there_is_at_least_one(self) -> None:
        worker = Worker("http://127.0.0.1:1")
        with self.assertRaisesRegex(ValueError, "has no handler"):
            worker.run()
        worker.step("a")(lambda ctx, input: None)
        with self.assertRaisesRegex(ValueError, "has a handler already"):
            worker.step("a")
        with self.assertRaisesRegex(ValueError, "cannot name a worker"):
            worker.step("../a")

    def test_an_error_that_is_final_has_no_time_to_try_again(self) -> None:
        with self.assertRaisesRegex(ValueError, "no retry_after"):
            HandlerError("x", retry=False, retry_after=1)


if __name__ == "__main__":
    unittest.main()
