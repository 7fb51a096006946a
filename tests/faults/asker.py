"""A process that asks the bank's fraud department, outside any stage, and may be killed before it hears the reply.

    python -m tests.faults.asker COUNT TIMEOUT [FAULT]

It says ``asked`` when all has been asked, each in a thread of its own, then a line for each reply, timeout or dead
letter, and stays until it is killed.
"""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from stagepost import FlowDied, ReplyFuture, ReplyTimeout
from stagepost.runtime.settings import handed_down
from tests.faults.bank import FRAUD, Check, Checked, open_bank


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(count: str, timeout: str, fault: str = "") -> None:
    place = handed_down()
    app = open_bank(place.database, place.queue).app

    def ask(n: int) -> ReplyFuture[Checked]:
        return app.request(FRAUD, Check(f"a{n}", fault), flow_id=f"r{n}")

    def hear(n: int, asked: ReplyFuture[Checked]) -> None:
        try:
            reply = asked.result(float(timeout))
        except ReplyTimeout:
            say(f"timeout r{n}")
        except FlowDied as error:
            say(f"died r{n} of letter {error.letter_id}: {error.summary}")
        else:
            say(f"reply r{n} {reply.account}")

    with ThreadPoolExecutor(int(count)) as pool:
        asked = list(pool.map(ask, range(int(count))))
        say("asked")
        list(pool.map(hear, range(int(count)), asked))
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
