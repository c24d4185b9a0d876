"""Workers and a client for flowgate, with nothing but the standard library.

A worker executes steps: `Worker`, with one decorated function a step. A client starts and watches
runs: `Client`.
"""

from .client import Client, Failure, Run, RunRef, SignalRef, Step
from .context import AsyncContext, Context, Level, State, StopReason
from .errors import (
    ApiError,
    ContextError,
    FlowgateError,
    HandlerError,
    Stopped,
    Unavailable,
    WaitTimeout,
)
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "AsyncContext",
    "Client",
    "Context",
    "ContextError",
    "Failure",
    "FlowgateError",
    "HandlerError",
    "Level",
    "Run",
    "RunRef",
    "SignalRef",
    "State",
    "Step",
    "StopReason",
    "Stopped",
    "Unavailable",
    "WaitTimeout",
    "Worker",
]
