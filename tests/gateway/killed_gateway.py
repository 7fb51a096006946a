"""A gateway process that kills itself at a step: ``python -m tests.gateway.killed_gateway URL DESCRIPTOR STEP TIMES``.

``STEP`` is ``none`` for a process that stays alive. ``TIMES`` is the number of the passing to die at.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from stagepost import App
from stagepost.gateway import asgi
from stagepost.gateway.configuration import Configuration
from stagepost.gateway.server import run_server
from stagepost.gateway.steps import GatewayStep
from tests.gateway.shop import BY_FIELDS, ORDERS, with_endpoint


def main(url: str, descriptor: str, step: str, times: str) -> None:
    left = int(times)

    def listen(passed: GatewayStep, message_ids: Sequence[str]) -> None:
        nonlocal left
        if passed == step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    app = with_endpoint(App("shop", database=url))
    gateway = asgi(app, routes=[ORDERS, BY_FIELDS], anonymous="erp", listener=listen)
    asyncio.run(run_server(gateway, Configuration(), Path.cwd(), int(descriptor), asyncio.Event()))


if __name__ == "__main__":
    main(*sys.argv[1:])
