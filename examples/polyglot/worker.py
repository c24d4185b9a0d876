"""The worker in Python of the polyglot flow: python3 worker.py URL"""

from __future__ import annotations

import logging
import sys
from typing import Any

from flowgate import Context, HandlerError, Worker

logging.basicConfig(level=logging.INFO)
# A short lease, so that the step of a killed worker is soon executed by another.
worker = Worker(sys.argv[1:] or "http://127.0.0.1:7420", lease=3.0)


@worker.step("score")
def score(ctx: Context, input: Any) -> dict[str, int]:
    order = input["order.received"]
    if order["orderId"] < 1:
        raise HandlerError.fatal("an order has a number from 1")
    # The work takes so long, unless the attempt must stop.
    ctx.wait_cancelled(order.get("workMs", 0) / 1000)
    ctx.heartbeat()
    points = order["orderId"] * 10
    ctx.log("info", f"order {order['orderId']} scores {points}, key {ctx.key}")
    ctx.state.set("points", points)
    ctx.emit("order.scored", {"points": points, "workMs": order.get("workMs", 0)})
    return {"points": points}


if __name__ == "__main__":
    worker.run()
