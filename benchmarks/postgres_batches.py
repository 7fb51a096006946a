"""Measure one worker thread with ``batch=50`` on PostgreSQL against ``pgbench`` with the same statements.

``pgbench`` sends each batch as one pipeline: the fence, fifty inserts, the outgoing messages and the journal. The
engine needs a second round trip for the last two, because it knows them only after all handlers have returned.
``pgbench`` has no arrays, so its server makes those of the fence.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.job import INSERT
from benchmarks.machine import watched
from benchmarks.postgres_stage import (
    ITEMS,
    MESSAGE_ID,
    ORIGIN,
    OWNER,
    TEMPLATE_OF_PGBENCH,
    YOUNGEST,
    Recording,
    copy,
    make_template,
    pieces_of,
    record,
    run_engine,
    run_pgbench,
    running_server,
)
from benchmarks.result import Ratio
from stagepost.store.postgres.statements import SQL
from stagepost.testing.postgres import PostgresServer

BATCH = 50
WINDOW = 2 * BATCH
ROUNDS = 7
GOAL = 0.9


def measure() -> Ratio:
    with running_server() as (server, folder):
        return _measure(server, folder)


def _measure(server: PostgresServer, folder: Path) -> Ratio:
    make_template(server)
    recorded = record(copy(server, "recorded"), batch=BATCH)
    script, variables = script_of(recorded)
    (folder / "script.sql").write_text(script)
    messages = 2 * ITEMS
    engine: list[float] = []
    pgbench: list[float] = []
    with watched(server.pid) as quiet:
        for number in range(ROUNDS):
            engine.append(messages / run_engine(copy(server, f"engine{number}"), batch=BATCH))
            url = copy(server, f"pgbench{number}", TEMPLATE_OF_PGBENCH)
            pgbench.append(BATCH * run_pgbench(url, folder / "script.sql", variables, messages // BATCH))
    return Ratio(
        name=f"PostgreSQL, batches of {BATCH}, one worker thread",
        unit="messages/s",
        ours=engine,
        limit=pgbench,
        limit_name="pgbench, the same statements, each batch one pipeline",
        goal=GOAL,
        others=quiet.others,
        note=f"{recorded.statements / messages:.2f} statements, {recorded.round_trips / messages:.3f} round trips each",
    )


def script_of(recorded: Recording) -> tuple[str, dict[str, str]]:
    """Return a ``pgbench`` script of one batch, and the values of its variables."""
    pieces, variables = pieces_of(recorded, PIECES, WINDOW)
    variables |= {"batch_number": "0", "items": str(ITEMS), "n": "1", "owner": variables[f"claim0_{OWNER}"]}
    for name in [each for each in variables if each.startswith("put")]:
        match int(name.rpartition("_")[2]) % COLUMNS_PUT:
            case 2:
                variables[name] = MESSAGE_ID
            case at if at == ORIGIN % COLUMNS_PUT:
                variables[name] = YOUNGEST
    inserts = ";\n".join([INSERT.replace(":stage", "1")] * BATCH)
    return SCRIPT.format(inserts=inserts, take=TAKE, **pieces), variables


COLUMNS_PUT = len(SQL["put_ready"].names)
PIECES = {
    "look": ("has_claimable", 1),
    "promote": ("promote_due", 1),
    "claim": ("claim_ready", 1),
    "received": ("record_waypoint", 0),
    "put": ("put_ready", BATCH),
    "both": ("record_waypoint", 2 * BATCH),
    "one": ("record_waypoint", BATCH),
}
ARRAYS = {
    1: "ARRAY(SELECT generate_series(:first::bigint, :last::bigint))",
    2: f"array_fill(:owner::text, ARRAY[{BATCH}])",
    3: f"array_fill(1, ARRAY[{BATCH}])",
    4: f"array_fill('{MESSAGE_ID}'::text, ARRAY[{BATCH}])",
}


def _take() -> str:
    text = SQL["take_all_claimed"].text.decode()
    for number, array in ARRAYS.items():
        text = text.replace(f"${number}", array)
    return text


TAKE = _take()
SCRIPT = f"""\
\\set batch_number :batch_number + 1
\\set first (:batch_number - 1) * {BATCH} + 1
\\set last :batch_number * {BATCH}
\\if :batch_number % {WINDOW // BATCH} = 1
{{look}};
\\startpipeline
BEGIN;
SET LOCAL synchronous_commit TO off;
{{promote}};
{{claim}};
{{received}};
COMMIT;
\\endpipeline
\\endif
\\startpipeline
BEGIN;
{{take}};
{{inserts}};
\\if :last <= :items
{{put}};
{{both}};
\\else
{{one}};
\\endif
COMMIT;
\\endpipeline
"""
