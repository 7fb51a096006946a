"""A process that starts flows gets one Ctrl-C after the other."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from random import Random

import pytest

from stagepost.app.app import engine_of
from tests.campaigns import STUCK, Tell
from tests.faults.interrupted_starter import Order, open_shop

SECONDS_MIN, SECONDS_MAX = 0.002, 0.05


@pytest.mark.parametrize("interrupts", [100, pytest.param(1_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def test_whatever_is_interrupted_starts_whole_or_not_at_all_and_holds_up_nobody(
    store: str, interrupts: int, request: pytest.FixtureRequest, tell: Tell
) -> None:
    new_database: Callable[[], str] = request.getfixturevalue(f"new_{store}")
    url = new_database()
    random = Random(interrupts)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.interrupted_starter", url, str(interrupts)],
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
        # A signal that comes while one is pending is lost, so more are sent than are waited for.
        while not select.select([starter.stdout], [], [], random.uniform(SECONDS_MIN, SECONDS_MAX))[0]:
            starter.send_signal(signal.SIGINT)
        started, is_last_new = json.loads(starter.stdout.read())
    assert starter.returncode == 0
    problems = [] if is_last_new else [f"{STUCK}: the last start was no new one"]
    app = open_shop(url)
    problems += [
        f"lost: order {number}"
        for number in started
        if app.start(app.target("place"), Order(number), flow_id=f"order {number}").is_new
    ]
    access = engine_of(app).access()
    (depth,) = access.session.queue.depths()
    # Each start that was interrupted has left one flow, or none; "order 0" and "last" were not.
    assert len(started) + 2 <= depth.ready <= len(started) + 2 + interrupts * 2
    problems += [
        f"doubled: order {number}" for number in started if len(access.session.journal.history(f"order {number}")) > 1
    ]
    access.close()
    app.close()
    tell(f"{interrupts} SIGINTs in app.start, {store}", problems)
    assert problems == []
