"""Requests to one of several servers, over connections that are kept."""

from __future__ import annotations

import http.client
import json
import math
import random
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ApiError, FlowgateError, Unavailable

API = "/api/v1"
# Bytes of an answer. A claim holds at most 100 jobs.
ANSWER_BYTES_MAX = 256 << 20
# Seconds that a kept connection may rest. Servers and what stands between close it sooner or later,
# and a request on a connection that is just being closed is lost.
IDLE_MAX = 20.0
CONNECT_TIMEOUT = 5.0
# What a server asks for by `Retry-After` is kept up to here.
RETRY_AFTER_MAX = 60.0


class Backoff:
    """Growing pauses with jitter, so that many workers do not come back at once."""

    def __init__(self, initial: float = 0.2, longest: float = 10.0) -> None:
        self._initial = initial
        self._longest = longest
        self._next = initial

    def pause(self, at_least: float | None = None) -> float:
        """Seconds to wait before the next try."""
        pause = self._next * random.uniform(0.5, 1.0)
        self._next = min(self._next * 2, self._longest)
        return max(pause, min(at_least or 0.0, RETRY_AFTER_MAX))

    def reset(self) -> None:
        """Begins again with the shortest pause."""
        self._next = self._initial


@dataclass(frozen=True)
class Server:
    """Where a server is."""

    url: str
    is_tls: bool
    host: str
    port: int
    prefix: str


class Call:
    """A request under way that another thread may abort."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._is_aborted = False

    @property
    def is_aborted(self) -> bool:
        """Whether nobody waits for its answer any more."""
        return self._is_aborted

    def begin(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if self._is_aborted:
                raise Unavailable("the request was aborted", sent=False)
            self._connection = connection

    def end(self) -> None:
        with self._lock:
            self._connection = None

    def abort(self) -> None:
        """Ends the request: whoever waits for its answer gets an error now."""
        with self._lock:
            self._is_aborted = True
            opened = self._connection.sock if self._connection is not None else None
            if opened is not None:
                try:
                    # Of the plain socket: a TLS socket would end its session under the reader.
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)
                except OSError:
                    pass


class Transport:
    """Sends requests to the first server that answers, and stays with it until it fails."""

    def __init__(
        self, servers: str | Sequence[str], token: str | None, *, idle_max: int = 16
    ) -> None:
        urls = [servers] if isinstance(servers, str) else list(servers)
        if not urls:
            raise ValueError("name at least one server, such as http://127.0.0.1:7420")
        self._servers = [parse_server(url) for url in urls]
        self._token = token
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._current = 0
        self._idle: list[tuple[int, http.client.HTTPConnection, float]] = []
        self._is_closed = False
        uses_tls = any(server.is_tls for server in self._servers)
        self._tls = ssl.create_default_context() if uses_tls else None

    def post(
        self,
        path: str,
        body: str,
        *,
        timeout: float,
        repeatable: bool,
        call: Call | None = None,
    ) -> Any:
        """Posts JSON text; the answer as a value."""
        return self._send("POST", path, body, timeout, repeatable, call)

    def get(self, path: str, *, timeout: float) -> Any:
        """Gets a resource; the answer as a value."""
        return self._send("GET", path, None, timeout, True, None)

    def close(self) -> None:
        """Closes the connections that rest."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for _, connection, _ in idle:
            connection.close()

    def _send(
        self,
        method: str,
        path: str,
        body: str | None,
        timeout: float,
        repeatable: bool,
        call: Call | None,
    ) -> Any:
        """Tries each server once, as long as that cannot do anything twice that must happen once."""
        problem: Unavailable | None = None
        for _ in self._servers:
            with self._lock:
                current = self._current
            try:
                return self._send_to(current, method, path, body, timeout, repeatable, call)
            except Unavailable as error:
                self._leave(current)
                problem = error
                if (error.sent and not repeatable) or (call is not None and call.is_aborted):
                    raise
            except ApiError as error:
                if error.status in (502, 503, 504):
                    self._leave(current)
                raise
        assert problem is not None, "there is at least one server"
        raise problem

    def _leave(self, failed: int) -> None:
        """The next call goes to the next server."""
        with self._lock:
            if self._current == failed:
                self._current = (failed + 1) % len(self._servers)

    def _send_to(
        self,
        index: int,
        method: str,
        path: str,
        body: str | None,
        timeout: float,
        repeatable: bool,
        call: Call | None,
    ) -> Any:
        # A kept connection may have been closed by the server just now, which shows only when it
        # is used: what must not happen twice gets a fresh one.
        kept = self._take(index) if repeatable else None
        if kept is not None:
            try:
                return self._exchange(index, kept, method, path, body, timeout, call)
            except Unavailable:
                if call is not None and call.is_aborted:
                    raise
        return self._exchange(index, self._connect(index), method, path, body, timeout, call)

    def _take(self, index: int) -> http.client.HTTPConnection | None:
        now = time.monotonic()
        stale: list[http.client.HTTPConnection] = []
        found: http.client.HTTPConnection | None = None
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                owner, connection, since = self._idle[place]
                if now - since > IDLE_MAX:
                    stale.append(connection)
                    del self._idle[place]
                elif owner == index and found is None:
                    found = connection
                    del self._idle[place]
        for connection in stale:
            connection.close()
        return found

    def _keep(self, index: int, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < self._idle_max:
                self._idle.append((index, connection, time.monotonic()))
                return
        connection.close()

    def _connect(self, index: int) -> http.client.HTTPConnection:
        server = self._servers[index]
        connection: http.client.HTTPConnection
        if server.is_tls:
            connection = http.client.HTTPSConnection(
                server.host, server.port, timeout=CONNECT_TIMEOUT, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(
                server.host, server.port, timeout=CONNECT_TIMEOUT
            )
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise Unavailable(f"cannot connect to {server.url}: {error}", sent=False) from error
        return connection

    def _exchange(
        self,
        index: int,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: str | None,
        timeout: float,
        call: Call | None,
    ) -> Any:
        server = self._servers[index]
        try:
            if call is not None:
                call.begin(connection)
            connection.sock.settimeout(timeout)
            headers = {"accept": "application/json", "user-agent": "flowgate-python"}
            if self._token is not None:
                headers["authorization"] = f"Bearer {self._token}"
            encoded = None
            if body is not None:
                headers["content-type"] = "application/json"
                encoded = body.encode()
            connection.request(method, server.prefix + API + path, encoded, headers)
            answer = connection.getresponse()
            content = answer.read(ANSWER_BYTES_MAX + 1)
            if len(content) > ANSWER_BYTES_MAX:
                raise FlowgateError(f"{server.url} answered with more than {ANSWER_BYTES_MAX} bytes")
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            why = str(error) or type(error).__name__
            raise Unavailable(f"{server.url} did not answer: {why}", sent=True) from error
        except BaseException:
            connection.close()
            raise
        finally:
            if call is not None:
                call.end()
        if answer.will_close:
            connection.close()
        else:
            self._keep(index, connection)
        return read_answer(server.url, answer, content)


def read_answer(url: str, answer: http.client.HTTPResponse, content: bytes) -> Any:
    """The value of a good answer; the error that a bad one tells."""
    try:
        value = json.loads(content) if content else None
    except ValueError:
        value = None
        if answer.status < 300:
            raise FlowgateError(
                f"{url} answered with something that is no JSON: is it a flowgate server?"
            ) from None
    if answer.status < 300:
        return value
    told = value.get("error") if isinstance(value, dict) else None
    if not isinstance(told, dict):
        told = {}
    message = str(told.get("message") or f"{url} answered {answer.status} {answer.reason}")
    raise ApiError(
        answer.status,
        str(told.get("code") or "unknown"),
        message,
        path=told.get("path"),
        help=told.get("help"),
        retry_after=read_retry_after(answer.getheader("retry-after")),
    )


def read_retry_after(text: str | None) -> float | None:
    """The seconds of a `Retry-After`; a date is not used by flowgate and counts as none."""
    try:
        seconds = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def parse_server(url: str) -> Server:
    """Reads the URL of a server, and says what is wrong with it."""
    example = "it looks like http://127.0.0.1:7420"
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not the URL of a server: {error}; {example}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the URL of a server; {example}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"the URL of a server has no user, query or fragment; {example}")
    is_tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/")
    return Server(url, is_tls, parts.hostname, port or (443 if is_tls else 80), prefix)


def encode(value: object) -> str:
    """A value as JSON text."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def segment(text: str) -> str:
    """A name as one segment of a path."""
    return urllib.parse.quote(text, safe="")
