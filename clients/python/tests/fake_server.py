"""A small server that keeps the contract of remote workers, and breaks it on command."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

PATIENCE = 20.0
Answer = tuple[int, Any]


@dataclass
class FakeJob:
    """A job of the server, and what became of it."""

    run_id: str
    step: str
    worker: str
    input: Any
    state: dict[str, Any]
    timeout_ms: int | None
    attempt: int = 0
    token: int = 0
    expires_at: float = 0.0
    is_cancelled: bool = False
    outcome: dict[str, Any] | None = None
    settled_token: int | None = None
    failures: list[dict[str, Any]] = field(default_factory=list)
    emitted: list[dict[str, Any]] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    releases: int = 0

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self.is_cancelled


@dataclass
class Request:
    """A request that the server got."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]
    at: float

    @property
    def verb(self) -> str:
        return self.path.rsplit("/", 1)[-1]


class FakeServer:
    """Jobs, leases by the server's clock, and a list of all requests."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: list[FakeJob] = []
        self.requests: list[Request] = []
        self.connections = 0
        self.answers_at_once = False
        # What stands in for the usual answer: a status and a body, or "cut" after it was applied.
        self.planned: list[tuple[str, Answer | str]] = []
        self.runs: dict[str, dict[str, Any]] = {}
        self._tokens = 0
        self._port = 0
        self._http: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listens, on the same port as before."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with fake.changed:
                    fake.connections += 1
                    open_sockets.append(self.connection)

            def do_GET(self) -> None:
                self.serve("GET")

            def do_POST(self) -> None:
                self.serve("POST")

            def serve(self, method: str) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                is_gone = lambda: is_down.is_set() or has_ended(self.connection)
                answer = fake.answer(method, self.path, body, headers, is_gone)
                if answer is None:
                    self.close_connection = True
                    return
                status, value = answer
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass

        open_sockets: list[Any] = []
        is_down = threading.Event()
        self._open_sockets = open_sockets
        self._is_down = is_down
        self._http = Server(("127.0.0.1", self._port), Handler)
        self._port = self._http.server_address[1]
        serve = self._http.serve_forever
        threading.Thread(target=serve, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Ends without a word, as a process that is killed."""
        if self._http is None:
            return
        self._is_down.set()
        self._http.shutdown()
        self._http.server_close()
        self._http = None
        with self.changed:
            self.changed.notify_all()
        for opened in self._open_sockets:
            try:
                opened.shutdown(2)
            except OSError:
                pass

    def add(self, worker: str, input: Any = None, **more: Any) -> FakeJob:
        """Makes a job due."""
        with self.changed:
            number = len(self.jobs) + 1
            job = FakeJob(
                run_id=f"run-{number}",
                step=more.get("step", worker),
                worker=worker,
                input=input,
                state=more.get("state", {}),
                timeout_ms=more.get("timeout_ms"),
            )
            self.jobs.append(job)
            self.changed.notify_all()
            return job

    def plan(self, verb: str, answer: Answer | str) -> None:
        """The next request of this verb is answered so."""
        with self.changed:
            self.planned.append((verb, answer))

    def cancel(self, job: FakeJob) -> None:
        with self.changed:
            job.is_cancelled = True

    def take_away(self, job: FakeJob) -> None:
        """Somebody else gets the job."""
        with self.changed:
            job.token = self._next_token()
            job.expires_at = time.monotonic() + 600

    def until(self, fact: Callable[[], bool], what: str = "it") -> None:
        """Waits for a fact that a request brings about."""
        with self.changed:
            if not self.changed.wait_for(fact, PATIENCE):
                seen = [f"{r.verb} {r.body}" for r in self.requests[-10:]]
                raise AssertionError(f"{what} did not happen; last requests: {seen}")

    def of(self, verb: str) -> list[Request]:
        """The requests of a verb so far."""
        with self.changed:
            return [request for request in self.requests if request.verb == verb]

    def answer(
        self,
        method: str,
        path: str,
        body: Any,
        headers: dict[str, str],
        is_down: Callable[[], bool],
    ) -> Answer | None:
        path = path.split("?")[0].removeprefix("/api/v1")
        request = Request(method, path, body, headers, time.monotonic())
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
            planned = self._take_planned(request.verb)
            if planned is not None and planned != "cut":
                assert not isinstance(planned, str)
                return planned
            answer = self._route(request, is_down)
            self.changed.notify_all()
            return None if planned == "cut" or is_down() else answer

    def _take_planned(self, verb: str) -> Answer | str | None:
        for place, (planned, answer) in enumerate(self.planned):
            if planned == verb:
                del self.planned[place]
                return answer
        return None

    def _route(self, request: Request, is_down: Callable[[], bool]) -> Answer:
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        if parts == ["jobs", "claim"]:
            return self._claim(request.body, is_down)
        if parts == ["jobs", "renew"]:
            return self._renew(request.body)
        if parts[0] == "jobs" and len(parts) == 4:
            return self._settle(parts[1], parts[2], parts[3], request.body)
        if parts[0] == "runs":
            return self._run(request.method, parts[1:], request.body)
        return refusal(404, "not_found")

    def _claim(self, body: Any, is_down: Callable[[], bool]) -> Answer:
        until = time.monotonic() + body["wait_ms"] / 1000
        while True:
            now = time.monotonic()
            is_gone = is_down()
            due = [
                job
                for job in self.jobs
                if not job.is_over and job.expires_at <= now and job.worker in body["workers"]
            ][: 0 if is_gone else body["max"]]
            if due or self.answers_at_once or now >= until or is_gone:
                return 200, {"jobs": [self._lease(job, body["lease_ms"]) for job in due]}
            self.changed.wait(min(until - now, 0.05))

    def _lease(self, job: FakeJob, lease_ms: int) -> dict[str, Any]:
        job.attempt += 1
        job.token = self._next_token()
        job.expires_at = time.monotonic() + lease_ms / 1000
        return {
            "run_id": job.run_id,
            "flow": "f",
            "revision": "r1",
            "step": job.step,
            "worker": job.worker,
            "attempt": job.attempt,
            "token": str(job.token),
            "key": f"{job.run_id}/{job.step}/1",
            "input": job.input,
            "state": job.state,
            "lease_ms": lease_ms,
            "expires_at": "2026-11-16T07:00:00.000Z",
            "timeout_ms": job.timeout_ms,
            "traceparent": f"00-{job.token:032x}-{job.attempt:016x}-01",
        }

    def _renew(self, body: Any) -> Answer:
        answers = []
        for wanted in body["jobs"]:
            job = self._find(wanted["run_id"], wanted["step"])
            is_held = job is not None and self._holds(job, wanted["token"])
            stop = None
            if job is not None and job.is_cancelled:
                is_held, stop = False, "cancelled"
            elif not is_held:
                stop = "lease_lost"
            elif job is not None:
                job.expires_at = time.monotonic() + body["lease_ms"] / 1000
            answers.append({**wanted, "held": is_held, "stop": stop})
        return 200, {"jobs": answers}

    def _settle(self, run_id: str, step: str, verb: str, body: Any) -> Answer:
        job = self._find(run_id, step)
        if job is None:
            return refusal(404, "job_not_found")
        done = {"run_id": run_id, "status": "running"}
        if verb == "complete" and str(job.settled_token) == body["token"]:
            return 200, done
        if job.is_over:
            return refusal(409, "run_terminal")
        if not self._holds(job, body["token"]):
            return refusal(409, "fenced")
        lines = body.get("logs") or body.get("lines") or []
        job.logs.extend(f"{line['level']}: {line['text']}" for line in lines)
        if verb == "complete":
            job.outcome = body
            job.settled_token = job.token
        elif verb == "fail":
            job.failures.append(body)
            job.expires_at = 0.0 if body.get("retry", True) else float("inf")
        elif verb == "release":
            job.releases += 1
            job.attempt -= 1
            job.expires_at = float("inf")
        elif verb == "emit":
            job.emitted.append({"event": body["event"], "data": body["data"]})
            return 200, {"held": True}
        elif verb == "log":
            return 200, {"held": True}
        else:
            return refusal(404, "not_found")
        return 200, done

    def _run(self, method: str, parts: list[str], body: Any) -> Answer:
        if not parts:
            for run in self.runs.values():
                if body.get("key") is not None and run["key"] == body["key"]:
                    return 200, {**ref(run), "existed": True}
            run_id = f"run-{len(self.runs) + 1}"
            run = {
                "run_id": run_id,
                "flow": body["flow"],
                "revision": "r1",
                "status": "running",
                "started_at": "2026-11-16T07:00:00.000Z",
                "ended_at": None,
                "key": body.get("key"),
                "tags": body.get("tags") or {},
                "failure": None,
                "input": body.get("input"),
                "state": {},
                "steps": [{"name": "a", "state": "running", "attempts": 1}],
            }
            self.runs[run_id] = run
            return 201, {**ref(run), "existed": False}
        found = self.runs.get(parts[0])
        if found is None:
            return refusal(404, "run_not_found")
        if method == "GET":
            return 200, found
        if parts[1] == "cancel":
            found["status"] = "cancelled"
            return 200, {**ref(found), "existed": True}
        if parts[1] == "signal":
            return 200, {**ref(found), "existed": True, "taken": True, "kept": False}
        return refusal(404, "not_found")

    def _find(self, run_id: str, step: str) -> FakeJob | None:
        for job in self.jobs:
            if job.run_id == run_id and job.step == step:
                return job
        return None

    def _holds(self, job: FakeJob, token: str) -> bool:
        return str(job.token) == token and time.monotonic() < job.expires_at and not job.is_over

    def _next_token(self) -> int:
        self._tokens += 1
        return self._tokens


def has_ended(connection: socket.socket) -> bool:
    """Whether the client has closed its connection."""
    readable, _, _ = select.select([connection], [], [], 0)
    try:
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def ref(run: dict[str, Any]) -> dict[str, Any]:
    return {name: run[name] for name in ("run_id", "flow", "revision", "status")}


def refusal(status: int, code: str) -> Answer:
    error = {"code": code, "message": f"refused by the fake: {code}", "path": None, "help": None}
    return status, {"error": error}
