"""The client against the fake server."""

from __future__ import annotations

import threading
import unittest

from flowgate import ApiError, Client, Unavailable, WaitTimeout
from tests.fake_server import FakeServer, refusal


class ClientTest(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer()
        self.addCleanup(self.server.stop)
        self.client = Client(self.server.url, token="secret")
        self.addCleanup(self.client.close)

    def test_a_run_is_started_once_for_a_key(self) -> None:
        first = self.client.start_run("order", {"id": 7}, key="k", tags={"a": "b"}, delay=1.5)
        again = self.client.start_run("order", {"id": 7}, key="k")
        self.assertEqual((first.run_id, first.existed), ("run-1", False))
        self.assertEqual((again.run_id, again.existed), ("run-1", True))
        expected = {
            "flow": "order",
            "input": {"id": 7},
            "key": "k",
            "tags": {"a": "b"},
            "delay_ms": 1500,
        }
        self.assertEqual(self.server.of("runs")[0].body, expected)
        self.assertEqual(self.server.of("runs")[0].headers["authorization"], "Bearer secret")

    def test_a_start_with_a_key_is_sent_again_and_one_without_is_not(self) -> None:
        self.server.plan("runs", "cut")
        with self.assertRaisesRegex(Unavailable, "may have been started: with a key"):
            self.client.start_run("order")
        self.assertEqual(len(self.server.of("runs")), 1)
        # On a connection that was kept it shows only then that the server had closed it.
        self.client.get_run("run-1")
        self.server.plan("runs", "cut")
        self.assertTrue(self.client.start_run("order", key="k").existed)
        self.assertEqual(len(self.server.runs), 2)

    def test_a_run_is_read_and_waited_for(self) -> None:
        run_id = self.client.start_run("order", [1]).run_id
        run = self.client.get_run(run_id)
        self.assertEqual((run.status, run.is_over, run.input), ("running", False, [1]))
        self.assertEqual((run.step("a").state, run.step("a").attempts), ("running", 1))
        with self.assertRaisesRegex(KeyError, "no step"):
            run.step("b")
        self.server.plan(run_id, refusal(503, "overloaded"))

        def end() -> None:
            self.server.until(lambda: len(self.server.of(run_id)) >= 4)
            with self.server.changed:
                failure = {"step": "a", "message": "declined", "kind": "failed"}
                self.server.runs[run_id].update(status="failed", failure=failure)

        ender = threading.Thread(target=end)
        ender.start()
        run = self.client.wait(run_id, timeout=20)
        ender.join()
        assert run.failure is not None
        self.assertEqual((run.status, run.failure.step, run.failure.message), ("failed", "a", "declined"))

    def test_a_wait_that_is_too_long_says_what_to_ask(self) -> None:
        run_id = self.client.start_run("order").run_id
        with self.assertRaisesRegex(WaitTimeout, f"flowgate why {run_id}"):
            self.client.wait(run_id, timeout=0.1)
        with self.assertRaises(ApiError) as caught:
            self.client.wait("unknown", timeout=5)
        self.assertEqual(caught.exception.code, "run_not_found")

    def test_a_debounced_run_is_waited_for_before_it_begins(self) -> None:
        until = "2026-11-16T07:00:01.000Z"
        answer = {"run_id": "run-1", "flow": "order", "status": None, "existed": False}
        self.server.plan("runs", (201, {**answer, "debounced_until": until}))
        ref = self.client.start_run("order")
        self.assertEqual((ref.status, ref.debounced_until), (None, until))

        def begin() -> None:
            self.server.until(lambda: len(self.server.of("run-1")) >= 2)
            with Client(self.server.url) as client:
                started = client.start_run("order")
            with self.server.changed:
                self.server.runs[started.run_id]["status"] = "completed"

        beginner = threading.Thread(target=begin)
        beginner.start()
        self.assertEqual(self.client.wait(ref, timeout=20).status, "completed")
        beginner.join()

    def test_signals_and_cancels_reach_the_run(self) -> None:
        run_id = self.client.start_run("order").run_id
        sent = self.client.signal(run_id, "approval", {"by": "Ada"})
        self.assertEqual((sent.taken, sent.kept), (True, False))
        expected = {"signal": "approval", "data": {"by": "Ada"}}
        self.assertEqual(self.server.of("signal")[0].body, expected)
        self.assertEqual(self.client.cancel(run_id, reason="enough").status, "cancelled")
        self.assertEqual(self.server.of("cancel")[0].body, {"reason": "enough"})

    def test_an_error_of_the_server_has_its_code_and_its_words(self) -> None:
        with self.assertRaises(ApiError) as caught:
            self.client.get_run("a/b")
        error = caught.exception
        self.assertEqual((error.status, error.code), (404, "run_not_found"))
        self.assertIn("refused by the fake", str(error))
        self.assertEqual(self.server.requests[-1].path, "/runs/a%2Fb")

    def test_a_server_that_is_away_is_named(self) -> None:
        self.server.stop()
        with self.assertRaisesRegex(Unavailable, f"cannot connect to {self.server.url}"):
            self.client.get_run("run-1")


if __name__ == "__main__":
    unittest.main()
