"""One worker in Python whose steps do nothing: python3 worker.py SERVER SLOTS"""

from __future__ import annotations

import sys
from typing import Any

from flowgate import Context, Worker

NEXT = {"one": "a", "two": "b", "three": "c", "four": "d"}
worker = Worker(sys.argv[1], slots=int(sys.argv[2]))


@worker.step("nothing")
def nothing(ctx: Context, input: Any) -> None:
    if ctx.step in NEXT:
        ctx.emit(NEXT[ctx.step], {})


print("ready", flush=True)
worker.run()
