"""Tools for tests: apps that run in the test's thread, a virtual clock, crash points, and the contract suites.

with testing.run(app, "memory:") as shop:
    app.start(pay, Order(...), flow_id="order:1", reply_to=done)
    shop.drain()
    assert shop.sql("SELECT count(*) FROM payment").scalar() == 1
"""

from stagepost.testing.clock import ManualClock
from stagepost.testing.crash import Crash, crash_everywhere, kill_at
from stagepost.testing.harness import Harness
from stagepost.testing.running import RunningApp, run, run_statement

__all__ = ["Crash", "Harness", "ManualClock", "RunningApp", "crash_everywhere", "kill_at", "run", "run_statement"]
