"""One worker thread on PostgreSQL against ``pgbench``, which gives the very same statements.

The limit is what a client can reach that needs to know nothing: ``pgbench`` sends each message's transaction as one
pipeline, one round trip, prepared; and once a window the claim's, with the window as large as the engine's was. Ours
has to see that the handler's own statement went well before the handler goes on, which is a round trip more.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.job import INSERT, make_app_on, start
from benchmarks.machine import watched
from benchmarks.result import Ratio
from stagepost.liveness.intake import Intake
from stagepost.liveness.proof import incarnate
from stagepost.store.postgres.flight import Cursor, Flight
from stagepost.store.postgres.statements import SQL, sources
from stagepost.testing.postgres import PostgresServer, binaries
from stagepost.transaction.callbacks import CallbackPool
from stagepost.worker.stage_thread import StageThread

ITEMS = 3_000
ROUNDS = 5
GOAL = 0.85
TABLE = "CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint NOT NULL, stage int NOT NULL)"
TEMPLATE = "template"

# The statements of one flight, with their parameters.
Flown = list[tuple[bytes, Sequence[Any]]]


def measure() -> Ratio:
    with TemporaryDirectory(prefix="stagepost-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = PostgresServer(folder / "server", {"shared_buffers": "512MB"})
        server.make()
        server.start()
        try:
            return _measure(server, folder)
        finally:
            server.stop("immediate")


def _measure(server: PostgresServer, folder: Path) -> Ratio:
    make_template(server)
    flights = record(copy(server, "recorded"))
    script, variables = script_of(flights)
    (folder / "script.sql").write_text(script)
    engine: list[float] = []
    pgbench: list[float] = []
    with watched(server.pid) as quiet:
        for number in range(ROUNDS):
            engine.append(2 * ITEMS / run_engine(copy(server, f"engine{number}")))
            pgbench.append(run_pgbench(copy(server, f"pgbench{number}"), folder / "script.sql", variables))
    messages = 2 * ITEMS
    statements = sum(len(flown) for flown in flights)
    return Ratio(
        name="PostgreSQL, one message a transaction, one worker thread",
        what="messages/s",
        ours=engine,
        limit=pgbench,
        limit_name="pgbench, the same statements, each message one pipeline",
        goal=GOAL,
        others=quiet.others,
        note=f"{statements / messages:.2f} statements and {len(flights) / messages:.2f} round trips a message",
    )


def make_template(server: PostgresServer) -> None:
    url = _create(server, TEMPLATE)
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
    app = make_app_on(url)
    start(app, ITEMS)
    app.close()


def copy(server: PostgresServer, name: str) -> str:
    return _create(server, name, TEMPLATE)


def _create(server: PostgresServer, name: str, template: str = "template1") -> str:
    with psycopg.connect(server.url, autocommit=True) as connection:
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        connection.execute(made)
        connection.execute("CHECKPOINT")
    return f"{server.url.rpartition('/')[0]}/{name}"


def run_engine(url: str) -> float:
    """Seconds that a worker's thread takes to drain it: the very thread that worker processes run."""
    app = make_app_on(url)
    node = app.node("bench")
    incarnation = incarnate(app, node)
    intake = Intake(
        list(app.stages()), incarnation.owner, node, 1, app.clock, is_done=lambda pending: pending.is_drained
    )
    go = threading.Event()
    thread = StageThread(app, 0, incarnation, intake, CallbackPool(), node, go)
    thread.start()
    begin = time.perf_counter()
    go.set()
    thread.join(3600)
    seconds = time.perf_counter() - begin
    incarnation.close()
    app.close()
    check(url)
    return seconds


def record(url: str) -> list[Flown]:
    """What one run of the engine sends, flight by flight."""
    flights: list[Flown] = []
    real = Flight.fly

    def fly(flight: Flight) -> Cursor:
        flights.append(list(flight._waiting))  # noqa: SLF001 - what is measured is what it sends
        return real(flight)

    with _replaced(Flight, "fly", fly):
        run_engine(url)
    return flights


def script_of(flights: Sequence[Flown]) -> tuple[str, dict[str, str]]:
    """A ``pgbench`` script of one message, and the values of its variables: the first that each statement was given."""
    names = {statement.text: name for name, statement in SQL.items()}
    given: dict[str, Sequence[Any]] = {}
    counts: Counter[str] = Counter()
    for text, parameters in (each for flown in flights for each in flown):
        name = names.get(text, "")
        given.setdefault(name, parameters)
        counts[name] += 1
    window = round(2 * ITEMS / counts["claim_ready"])
    variables = {"n": "0", "window": str(window), "items": str(ITEMS)}
    for name, parameters in given.items():
        if name:
            values = dict(zip(SQL[name].names, parameters, strict=True))
            variables |= {f"{name}_{key}": _literal(value) for key, value in values.items()}
    variables["claim_ready_limit"] = str(window)
    # What the first stage sends is claimed after all that was there before, so that ids follow one another.
    variables["put_ready_origins"] = "{4000000000000000}"
    variables["take_claimed_owner"] = variables["claim_ready_owner"]
    return SCRIPT.format(insert=INSERT.replace(":stage", "1"), **{name: _script(name) for name in USED}), variables


USED = ("has_claimable", "promote_due", "claim_ready", "take_claimed", "put_ready", "record_waypoints")
SCRIPT = """\
\\set n :n + 1
\\if :n % :window = 1
{has_claimable};
\\startpipeline
BEGIN;
SET LOCAL synchronous_commit TO off;
{promote_due};
{claim_ready};
{record_waypoints};
COMMIT;
\\endpipeline
\\endif
\\set take_claimed_id :n
\\startpipeline
BEGIN;
{take_claimed};
{insert};
\\if :n <= :items
{put_ready};
\\endif
{record_waypoints};
COMMIT;
\\endpipeline
"""


def _script(name: str) -> str:
    """The shipped statement, with variables of its own."""
    return re.sub(r"(?<!:):([a-z_]+)", rf":{name}_\1", sources()[name]).strip()


def _literal(value: Any) -> str:
    """As the server reads a parameter that comes as text."""
    if isinstance(value, list):
        return "{" + ",".join("NULL" if each is None else f'"{_escaped(_literal(each))}"' for each in value) + "}"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def run_pgbench(url: str, script: Path, variables: dict[str, str]) -> float:
    """Messages a second."""
    settings = [word for name, value in variables.items() for word in ("-D", f"{name}={value}")]
    command = [str(binaries() / "pgbench"), "-n", "-M", "prepared", "-t", str(2 * ITEMS), "-f", str(script)]
    done = subprocess.run([*command, *settings, url], capture_output=True, text=True, check=False)
    found = re.search(r"tps = ([\d.]+) \(without", done.stdout)
    if found is None or "ERROR" in done.stderr:
        raise RuntimeError(f"pgbench failed: {done.stderr.strip()[:500]}")
    check(url, are_numbered=False)
    return float(found[1])


def check(url: str, *, are_numbered: bool = True) -> None:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*), count(DISTINCT (n, stage)) FROM entry").fetchone()
        left = connection.execute("SELECT count(*) FROM stagepost_ready").fetchone()
    assert row is not None
    assert left is not None
    assert row[0] == 2 * ITEMS, row
    assert not are_numbered or row[1] == 2 * ITEMS, row
    assert left[0] == 0, left


@contextmanager
def _replaced(holder: object, name: str, value: object) -> Iterator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)
