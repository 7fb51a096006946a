"""Measure one worker thread on PostgreSQL against ``pgbench`` with the same statements.

``pgbench`` is the limit, because it reads no results. It sends each message's transaction as one prepared pipeline, in
one round trip. Once a window, as large as the engine's, it sends the claim. The engine needs one more round trip: the
handler goes on only after its own statement has succeeded.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.engine import drain
from benchmarks.job import INSERT, make_app_on, start
from benchmarks.machine import watched
from benchmarks.result import Ratio
from stagepost.store.postgres.statement_pipeline import Result, StatementPipeline
from stagepost.store.postgres.statements import SQL, Statement, for_rows
from stagepost.store.postgres.writer import ROWS_A_STATEMENT
from stagepost.store.sql.database import Parameters, in_order
from stagepost.testing.postgres import PostgresServer, binaries

ITEMS = 3_000
ROUNDS = 5
GOAL = 0.85
TABLE = "CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint NOT NULL, stage int NOT NULL)"
TEMPLATE = "template"
# The script has one message id for all messages, and so has its copy of the queue.
MESSAGE_ID = "00000000-0000-7000-8000-000000000000"
TEMPLATE_OF_PGBENCH = "template_of_pgbench"


@dataclass
class Recording:
    """The statements of a run: how often each ran, and its first parameters."""

    given: dict[bytes, Sequence[Any]] = field(default_factory=dict)
    counts: Counter[bytes] = field(default_factory=Counter)
    round_trips: int = 0

    @property
    def statements(self) -> int:
        return self.counts.total()

    def record(self, text: bytes, parameters: Sequence[Any]) -> None:
        self.given.setdefault(text, parameters)
        self.counts[text] += 1


def measure() -> Ratio:
    with running_server() as (server, folder):
        return _measure(server, folder)


@contextmanager
def running_server(shared_buffers: str = "512MB") -> Iterator[tuple[PostgresServer, Path]]:
    with TemporaryDirectory(prefix="stagepost-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = PostgresServer(folder / "server", {"shared_buffers": shared_buffers})
        server.make()
        server.start()
        try:
            yield server, folder
        finally:
            server.stop("immediate")


def _measure(server: PostgresServer, folder: Path) -> Ratio:
    make_template(server)
    recorded = record(copy(server, "recorded"))
    script, variables = script_of(recorded)
    (folder / "script.sql").write_text(script)
    engine: list[float] = []
    pgbench: list[float] = []
    with watched(server.pid) as quiet:
        for number in range(ROUNDS):
            engine.append(2 * ITEMS / run_engine(copy(server, f"engine{number}")))
            url = copy(server, f"pgbench{number}", TEMPLATE_OF_PGBENCH)
            pgbench.append(run_pgbench(url, folder / "script.sql", variables, 2 * ITEMS))
    messages = 2 * ITEMS
    return Ratio(
        name="PostgreSQL, one message a transaction, one worker thread",
        unit="messages/s",
        ours=engine,
        limit=pgbench,
        limit_name="pgbench, the same statements, each message one pipeline",
        goal=GOAL,
        others=quiet.others,
        note=f"{recorded.statements / messages:.2f} statements, {recorded.round_trips / messages:.2f} round trips each",
    )


def make_template(server: PostgresServer) -> None:
    url = copy(server, TEMPLATE, "template1")
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
    app = make_app_on(url)
    start(app, ITEMS)
    app.close()
    with psycopg.connect(copy(server, TEMPLATE_OF_PGBENCH), autocommit=True) as connection:
        connection.execute("UPDATE stagepost_ready SET message_id = %s", (MESSAGE_ID,))
        connection.execute("VACUUM FULL ANALYZE stagepost_ready")


def copy(server: PostgresServer, name: str, template: str = TEMPLATE) -> str:
    with psycopg.connect(server.url, autocommit=True) as connection:
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        connection.execute(made)
        connection.execute("CHECKPOINT")
    return f"{server.url.rpartition('/')[0]}/{name}"


def run_engine(url: str, *, batch: int = 1) -> float:
    """Return the seconds that one thread of a worker process takes to drain the database."""
    seconds = drain(make_app_on(url, batch=batch))
    check(url)
    return seconds


def record(url: str, *, batch: int = 1) -> Recording:
    """Record the statements of one run of the engine, and the number of its round trips."""
    found = Recording()
    execute, add, add_foreign = StatementPipeline.execute, StatementPipeline.add, StatementPipeline.add_foreign

    def counting(pipeline: StatementPipeline) -> Result:
        found.round_trips += 1
        return execute(pipeline)

    def noting(pipeline: StatementPipeline, statement: Statement, parameters: Parameters, deliver: Any = None) -> None:
        found.record(statement.text, in_order(statement.names, parameters))
        add(pipeline, statement, parameters, deliver)

    def noting_foreign(
        pipeline: StatementPipeline,
        text: bytes,
        parameters: Sequence[Any],
        deliver: Callable[[Result], None] | None = None,
    ) -> None:
        found.record(text, parameters)
        add_foreign(pipeline, text, parameters, deliver)

    with (
        _replaced(StatementPipeline, "execute", counting),
        _replaced(StatementPipeline, "add", noting),
        _replaced(StatementPipeline, "add_foreign", noting_foreign),
    ):
        run_engine(url, batch=batch)
    return found


def script_of(recorded: Recording) -> tuple[str, dict[str, str]]:
    """Return a ``pgbench`` script of one message, and its variables with each statement's first parameters."""
    window = round(2 * ITEMS / recorded.counts[SQL["claim_ready"].text])
    pieces, variables = pieces_of(recorded, PIECES, window)
    variables |= {"n": "0", "window": str(window), "items": str(ITEMS)}
    variables["take0_2"] = variables[f"claim0_{OWNER}"]
    variables["take0_4"] = variables["put0_2"] = MESSAGE_ID
    variables[f"put0_{ORIGIN}"] = YOUNGEST
    return SCRIPT.format(insert=INSERT.replace(":stage", "1"), **pieces), variables


def pieces_of(
    recorded: Recording, wanted: dict[str, tuple[str, int]], window: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the statements of a script by the names of its pieces, and the values of their variables."""
    variables: dict[str, str] = {}
    pieces: dict[str, str] = {}
    for piece, (name, rows) in wanted.items():
        full, rest = divmod(rows or window, ROWS_A_STATEMENT)
        counts = [ROWS_A_STATEMENT] * full + ([rest] if rest else [])
        texts = []
        for part, count in enumerate(counts):
            prefix = f"{piece}{part}"
            statement = for_rows(SQL[name], count) if name in MULTIPLIED else SQL[name]
            # The engine may not have run the statement with this number of rows. Repeat the parameters of one row then.
            given = recorded.given.get(statement.text) or list(recorded.given[for_rows(SQL[name], 1).text]) * count
            values = {f"{prefix}_{at}": value for at, value in enumerate(given, 1)}
            text = re.sub(r"\$(\d+)", rf":{prefix}_\1", statement.text.decode())
            for name_of_none in [key for key, value in values.items() if value is None]:
                # A variable of pgbench cannot be null.
                text = re.sub(rf":{name_of_none}\b", "NULL", text)
            variables |= {key: _literal(value) for key, value in values.items() if value is not None}
            texts.append(text)
        pieces[piece] = ";\n".join(texts)
    variables[f"claim0_{LIMIT}"] = str(window)
    return pieces, variables


# The numbers of parameters: two of the claim, and the last one of put_ready.
OWNER, LIMIT, ORIGIN = 1, 5, 7
# The put messages are younger than all others, so the claim takes the first stage's messages first, in order of ids.
YOUNGEST = "4000000000000000"
MULTIPLIED = {"put_ready", "record_waypoint"}
# By piece, the statement and its number of rows. 0 is one window of rows.
PIECES = {
    "look": ("has_claimable", 1),
    "promote": ("promote_due", 1),
    "claim": ("claim_ready", 1),
    "received": ("record_waypoint", 0),
    "take": ("take_claimed", 1),
    "put": ("put_ready", 1),
    "both": ("record_waypoint", 2),
    "one": ("record_waypoint", 1),
}
SCRIPT = """\
\\set n :n + 1
\\if :n % :window = 1
{look};
\\startpipeline
BEGIN;
SET LOCAL synchronous_commit TO off;
{promote};
{claim};
{received};
COMMIT;
\\endpipeline
\\endif
\\set take0_1 :n
\\startpipeline
BEGIN;
{take};
{insert};
\\if :n <= :items
{put};
{both};
\\else
{one};
\\endif
COMMIT;
\\endpipeline
"""


def _literal(value: Any) -> str:
    """Return a parameter in the text form that the server reads."""
    if isinstance(value, list):
        return "{" + ",".join("NULL" if each is None else f'"{_escaped(_literal(each))}"' for each in value) + "}"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def run_pgbench(url: str, script: Path, variables: dict[str, str], times: int) -> float:
    """Run the script ``times`` times. Return its runs a second."""
    settings = [word for name, value in variables.items() for word in ("-D", f"{name}={value}")]
    command = [str(binaries() / "pgbench"), "-n", "-M", "prepared", "-t", str(times), "-f", str(script)]
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
