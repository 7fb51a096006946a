"""``python -m examples.slow_callbacks DATABASE BROKER BROKER_PID``: a PostgreSQL URL, an AMQP URL, and its process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import get_args

from examples.slow_callbacks.callers import CALLERS, CONNECTIONS, WORKING, Kind, run


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 3 or not arguments[2].isdecimal():
        print(f"usage: {__doc__}", file=sys.stderr)
        return 2
    database, broker, pid = arguments
    print(f"{CALLERS} callers, {CONNECTIONS} connections, and a broker that is stopped")
    for kind in get_args(Kind):
        found = run(kind, database, broker, int(pid))
        held = "" if found.culprit is None else f", held in {found.culprit}"
        print(
            f"{kind:22}  orders taken meanwhile {found.done:3} of {WORKING}   connections in use {found.in_use:2} of "
            f"{CONNECTIONS}{held}   idle after COMMIT {found.idle:2}   works again: yes"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
