"""Tools for tests: a harness for one process, a manual clock, crash points, and the contract suites.

app.database = "memory:"
harness = Harness(app)
app.start(pay, Order(...), flow_id="order:1", reply_to=done)
harness.drain()
assert harness.dead_letters() == []
"""

from stagepost.testing.clock import ManualClock
from stagepost.testing.crash import crash_everywhere, kill_at
from stagepost.testing.harness import Harness

__all__ = ["Harness", "ManualClock", "crash_everywhere", "kill_at"]
