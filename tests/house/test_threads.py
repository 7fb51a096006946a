"""Every thread of Stagepost is a service, with few exceptions."""

from __future__ import annotations

import re

from tests.house.counting import SOURCE

# The service itself, the pool of after_commit, a broker's heart-beat, and what keeps a store's own connection.
STARTERS = {
    "stagepost/runtime/service.py",
    "stagepost/transaction/callbacks.py",
    "stagepost/broker/rabbitmq/link.py",
    "stagepost/store/postgres/lock_row.py",
    "stagepost/store/postgres/notifier.py",
}


def test_only_services_and_the_named_exceptions_start_threads() -> None:
    # The contract suites are tests.
    files = [path for path in SOURCE.rglob("*.py") if "testing" not in path.parts]
    starting = [path for path in files if re.search(r"threading\.Thread\(|PoolExecutor\(", path.read_text())]
    assert {str(path.relative_to(SOURCE)) for path in starting} == STARTERS
