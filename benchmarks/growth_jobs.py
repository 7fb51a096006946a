"""The jobs of ``job_growth``: each makes its input, names its program, and checks the result.

A size is a number of rows, of messages, or of lines of the journal. ``reconcile`` reads two journals of that size. It
compares ids in windows that differ, which are few. ``reconcile_ids`` has one window, so it compares all ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import audit_rows
from benchmarks.initiate_rows import APP, write_items
from benchmarks.job import create_table, make_app_on, start
from stagepost.flow.clock import HOUR, SystemClock
from stagepost.flow.target import OUTBOUND_PREFIX
from stagepost.ports.declarations import Declaration
from stagepost.ports.journal import Waypoint, WaypointName
from stagepost.ports.registry import driver_of

KEEP = 24
# The lines that a message between two services has in both journals together. Each of them sends as many messages.
LINES_PER_MESSAGE = 5
PAYMENTS, LEDGER = "payments.book", "ledger.book"
# The planted differences are spread over the windows of the journal.
LOST, DUPLICATED = 3, 2
ONE_WINDOW = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Site:
    """A folder, a maker of empty stores, which are named, and variables for the programs that run there."""

    folder: Path
    new: Callable[[str], str]
    environment: dict[str, str] = field(default_factory=dict)

    def store(self, name: str) -> str:
        """Make a store, which commands use unless they name another one. Return its URL."""
        url = self.new(name)
        self.environment["STAGEPOST_DATABASE"] = url
        return url

    def app(self, url: str) -> str:
        """Write the module of an app that has its data there. Return the app's name."""
        (self.folder / "growth_app.py").write_text(APP.format(url=url))
        return "growth_app:app"


# Each returns the words of its program, and a check of the JSON that it prints.
Check = Callable[[Any], None]
Job = Callable[[Site, int], tuple[list[str], Check]]


def initiate(site: Site, size: int) -> tuple[list[str], Check]:
    url = site.store(f"initiate{size}")
    file = site.folder / f"items{size}.csv"
    write_items(file, size)
    words = ["stagepost", "initiate", str(file), "--to", "bench.first", "--id", "n", "--app", site.app(url), "--json"]
    return words, lambda answer: _expect(answer["started"], size)


def process(site: Site, size: int) -> tuple[list[str], Check]:
    url = site.store(f"process{size}")
    create_table(url)
    app = make_app_on(url)
    # The first of two stages sends a message to the second one.
    start(app, size // 2)
    app.close()
    words = ["stagepost", "process", site.app(url), "--json"]
    return words, lambda answer: _expect(answer["committed"], size // 2 * 2)


def archive(site: Site, size: int) -> tuple[list[str], Check]:
    """Write lines of ended flows, and let all of them become old."""
    url = site.store(f"archive{size}")
    with closing(driver_of(url).open_existing(url, "the benchmark").session()) as session:
        rows = _fill(url, size) if size else 0
        session.begin()
        session.retention.declare("bench", {"@journal": KEEP})
        session.commit()
        for hour in range(KEEP + 2):
            session.begin()
            session.retention.count_hour(SystemClock().now() + hour * HOUR)
            session.commit()
        mark = session.retention.mark(session.retention.hours())
        assert mark is not None
        session.begin()
        session.retention.cut(mark.line)
        session.commit()
    words = ["stagepost", "archive", str(site.folder / f"archive{size}"), "--json"]
    return words, lambda answer: _expect(sum(each["rows"] for each in answer if each["kind"] == "journal"), rows)


def source(site: Site, size: int) -> tuple[list[str], Check]:
    url = site.store(f"source{size}")
    rows = _fill(url, size) if size else 0
    return ["benchmarks.spark_programs", "source", url], lambda answer: _expect(answer["rows"], rows)


def sink(site: Site, size: int) -> tuple[list[str], Check]:
    url = site.store(f"sink{size}")
    words = ["benchmarks.spark_programs", "sink", site.app(url), str(size)]

    def check(answer: Any) -> None:
        with closing(driver_of(url).open_existing(url, "the benchmark").session()) as session:
            _expect(sum(each.ready for each in session.queue.depths()), size)

    return words, check


def reconcile(site: Site, size: int) -> tuple[list[str], Check]:
    ledger = site.new(f"ledger{size}")
    payments = site.store(f"payments{size}")
    messages = size // LINES_PER_MESSAGE
    _send(payments, PAYMENTS, to=LEDGER, messages=messages)
    _send(ledger, LEDGER, to=PAYMENTS, messages=messages, has_faults=True)
    return ["stagepost", "reconcile", "--with", ledger, "--json"], lambda answer: _check_verdicts(answer, messages)


def reconcile_ids(site: Site, size: int) -> tuple[list[str], Check]:
    words, check = reconcile(site, size)
    return [*words, "--window", str(ONE_WINDOW)], check


def _fill(url: str, size: int) -> int:
    with closing(driver_of(url).open_existing(url, "the benchmark").session()) as session:
        return audit_rows.fill_session(session, size // (3 * len(audit_rows.STAGES)))


def _send(url: str, stage: str, *, to: str, messages: int, has_faults: bool = False) -> None:
    """Write the journal of a service that sends so many messages to another one, and receives as many from it."""
    sender, receiver = stage.partition(".")[0], to.partition(".")[0]
    lost, twice = _faults(messages) if has_faults else ([], [])

    def lines() -> Iterator[Waypoint]:
        for n in range(messages):
            at = audit_rows.BEGIN + n * audit_rows.MICROSECONDS_A_FLOW
            sent, arrived = _message_id(sender, n), _message_id(receiver, n)
            yield from _lines(("sent", "confirmed"), at, f"{OUTBOUND_PREFIX}{to}", sent)
            if n not in lost:
                yield from _lines(("arrived", "received", "committed"), at, stage, arrived)
            if n in twice:
                yield from _lines(("arrived",), at, stage, arrived)

    with closing(driver_of(url).open_existing(url, "the benchmark").session()) as session:
        session.begin()
        session.declarations.put([Declaration(stage, stage, "app")])
        session.commit()
        audit_rows.record(session, lines())


def _faults(messages: int) -> tuple[list[int], list[int]]:
    """Return the numbers of the messages that are lost, and of those that arrive twice."""
    found = [number * messages // (LOST + DUPLICATED) for number in range(LOST + DUPLICATED)] if messages else []
    return found[:LOST], found[LOST:]


def _message_id(sender: str, number: int) -> str:
    """Return a text as long as an id."""
    return f"{number:08x}-{sender:0>27}"


def _lines(names: Sequence[WaypointName], at: int, stage: str, message_id: str) -> Iterator[Waypoint]:
    for name in names:
        yield Waypoint(name, at, "worker@host:0", stage, message_id, f"f-{message_id}", 1, at, kind="send", bytes=500)


def _check_verdicts(answer: Any, messages: int) -> None:
    lost, twice = _faults(messages)
    for listed, numbers in (("lost", lost), ("duplicated", twice), ("unexpected", [])):
        _expect([each["message_id"] for each in answer[listed]], [_message_id("payments", each) for each in numbers])
    if messages:
        ok = {each["address"]: each["ok"] for each in answer["addresses"] if each["sent"]}
        _expect(ok, {PAYMENTS: messages, LEDGER: messages - LOST - DUPLICATED})


def _expect(found: object, wanted: object) -> None:
    assert found == wanted, f"{found} in place of {wanted}"


JOBS: dict[str, Job] = {
    "archive": archive,
    "initiate": initiate,
    "process": process,
    "reconcile": reconcile,
    "reconcile_ids": reconcile_ids,
    "sink": sink,
    "source": source,
}
