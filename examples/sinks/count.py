"""Kill workers between the commit of a stage and the commit of a sink, and count the archive's lines.

python -m examples.sinks.count
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from examples.sinks.app import Order, make_app, prepare

ORDERS = 12
# The process of each of these orders is killed once.
VICTIMS = (2, 5, 9)


@dataclass(frozen=True)
class Outcome:
    """The numbers of orders, by the two databases after all messages are handled."""

    booked_once: int
    archived_once: int
    lost: int
    repeated: int


def count(commits_in: str, folder: Path, environment: Mapping[str, str]) -> Outcome:
    """Start the orders, kill the worker's processes, and let it finish."""
    database = f"sqlite:///{folder / 'bookings.db'}"
    prepare(folder)
    app = make_app(database)
    for number in range(ORDERS):
        app.start(app.target("orders.book"), Order(number), flow_id=f"order-{number}")
    app.close()
    for number in VICTIMS:
        (folder / f"kill-order-{number}").touch()
    settings = {"STAGEPOST_DATABASE": database, "ARCHIVE_FOLDER": str(folder), "ARCHIVE_COMMITS_IN": commits_in}
    subprocess.run(
        [sys.executable, "-m", "stagepost", "worker", "examples.sinks.app:app", "--drain", "--threads", "1"],
        env={**environment, **settings},
        check=True,
    )
    booked = _lines(folder / "bookings.db", "SELECT flow_id FROM booking")
    archived = _lines(folder / "archive.db", "SELECT flow_id FROM line")
    return Outcome(
        booked_once=sum(1 for times in booked.values() if times == 1),
        archived_once=sum(1 for flow_id in booked if archived[flow_id] == 1),
        lost=sum(1 for flow_id in booked if archived[flow_id] == 0),
        repeated=sum(1 for flow_id in booked if archived[flow_id] > 1),
    )


def main() -> None:
    for commits_in in ("success", "before_commit"):
        with tempfile.TemporaryDirectory() as folder:
            found = count(commits_in, Path(folder), os.environ)
        print(
            f"archive commits in {commits_in:13}  orders {ORDERS}, killed {len(VICTIMS)}: booked once "
            f"{found.booked_once}, archived once {found.archived_once}, lost {found.lost}, repeated {found.repeated}"
        )


def _lines(file: Path, statement: str) -> Counter[str]:
    with closing(sqlite3.connect(file)) as connection:
        return Counter(flow_id for (flow_id,) in connection.execute(statement))


if __name__ == "__main__":
    main()
