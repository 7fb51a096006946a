"""Faults that a message gives its handler, and points at which a process is killed.

``fault`` is a list of ``[stage:]name[=argument]``, separated by blanks. Without a stage it holds for every stage. A
name with ``late-`` happens after the handler wrote its entry, in the open transaction. Any other happens before the
handler touches the database. The argument of a name with ``-once`` is a marker file.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from stagepost import Context, TimeLimitExceeded, TransactionEnded
from stagepost.flow.claim import Claim
from stagepost.testing import kill_at
from stagepost.transaction.settling import Settlement
from stagepost.transaction.steps import Step, StepListener
from stagepost.transaction.unit_of_work import EXIT_FORKED

LONG_SECONDS = 3600


def meet(ctx: Context, fault: str, *, before: bool) -> None:
    for what, argument in of_stage(ctx, fault, before):
        HANDLER_FAULTS[what](ctx, argument)


async def meet_async(ctx: Context, fault: str, *, before: bool) -> None:
    for what, argument in of_stage(ctx, fault, before):
        if what == "sleep":
            await asyncio.sleep(LONG_SECONDS)
        else:
            HANDLER_FAULTS[what](ctx, argument)


def of_stage(ctx: Context, fault: str, before: bool) -> Iterator[tuple[str, str]]:
    for each in fault.split():
        place, _, rest = each.rpartition(":")
        what, _, argument = rest.partition("=")
        is_late = what.startswith("late-")
        if place in ("", ctx.stage) and is_late is not before:
            yield what.removeprefix("late-"), argument


def is_first(marker: str) -> bool:
    """Return whether this is the first process, of all, to make the marker file."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def fail(ctx: Context, argument: str) -> None:
    raise RuntimeError("told to fail")


def refuse(ctx: Context, argument: str) -> None:
    ctx.refuse("told to refuse")


def fail_once(ctx: Context, marker: str) -> None:
    if is_first(marker):
        fail(ctx, marker)


def fail_while(ctx: Context, file: str) -> None:
    if Path(file).exists():
        fail(ctx, file)


def wait_while(ctx: Context, file: str) -> None:
    if Path(file).exists():
        Path(f"{file}.entered").touch()
    while Path(file).exists():
        time.sleep(0.01)


def fail_unprintably(ctx: Context, argument: str) -> None:
    """Raise an error with a text that is not UTF-8, as an OSError has of such a file's name."""
    raise ValueError(f"cannot read {os.fsdecode(bytes([114, 233, 115]))}.csv")


def fail_unless(ctx: Context, mended: str) -> None:
    if not Path(mended).exists():
        fail(ctx, mended)


def sigkill(ctx: Context, argument: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_once(ctx: Context, marker: str) -> None:
    if is_first(marker):
        os.kill(os.getpid(), signal.SIGKILL)


def exit_at_once(ctx: Context, argument: str) -> None:
    os._exit(0)


def quit_python(ctx: Context, argument: str) -> None:
    sys.exit("told to quit")


def talk(ctx: Context, argument: str) -> None:
    """Write to standard output, which a Python process of Spark's uses for what the JVM reads."""
    print("from a handler")  # noqa: T201
    sys.stdout.flush()


def segfault(ctx: Context, argument: str) -> None:
    ctypes.string_at(0)


def crash_the_backend(ctx: Context, argument: str) -> None:
    """Crash the backend, as a defect of a C function does. The server then ends all of its connections."""
    os.kill(ctx.sql("SELECT pg_backend_pid() AS pid").one()["pid"], signal.SIGSEGV)
    ctx.sql("SELECT 1")


def crash_the_backend_once(ctx: Context, marker: str) -> None:
    if is_first(marker):
        crash_the_backend(ctx, marker)


def count(ctx: Context, file: str) -> None:
    """Count the call in a file, which no rollback and no full disk touches."""
    with Path(file).open("a", encoding="utf-8") as counter:
        counter.write(".")


def write_much(ctx: Context, argument: str) -> None:
    # Random: PostgreSQL would compress what is all alike.
    ctx.sql("INSERT INTO bulk (flow_id, data) VALUES (:flow, :data)", flow=ctx.flow_id, data=os.urandom(8_000_000))


def slow(ctx: Context, seconds: str) -> None:
    time.sleep(float(seconds))


def gate(ctx: Context, name: str) -> None:
    """Make the file ``name.entered``, and wait for ``name.open``."""
    Path(f"{name}.entered").touch()
    wait_at(name)


def gate_once(ctx: Context, name: str) -> None:
    """Wait at the gate, in the first call alone."""
    if is_first(f"{name}.entered"):
        wait_at(name)


def wait_at(name: str) -> None:
    while not Path(f"{name}.open").exists():
        time.sleep(0.01)


def spin(ctx: Context, argument: str) -> None:
    while True:
        pass


def long_statement(ctx: Context, argument: str) -> None:
    ctx.sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000000) SELECT max(i) FROM n"
    )


def swallow(ctx: Context, argument: str) -> None:
    """Ignore every interrupt."""
    while True:
        with suppress(TimeLimitExceeded):
            while True:
                time.sleep(0.01)


def swallow_once(ctx: Context, marker: str) -> None:
    if is_first(marker):
        swallow(ctx, marker)


def swallow_and_write(ctx: Context, argument: str) -> None:
    """Catch the interrupt and return."""
    with suppress(TimeLimitExceeded):
        spin(ctx, argument)


def stuck(ctx: Context, argument: str) -> None:
    time.sleep(LONG_SECONDS)


def stuck_once(ctx: Context, marker: str) -> None:
    if is_first(marker):
        time.sleep(LONG_SECONDS)


def stuck_with_the_lock(ctx: Context, argument: str) -> None:
    """Sleep in C with Python's own lock held. No other thread of the process runs any more."""
    ctypes.PyDLL(None).sleep(LONG_SECONDS)


def stuck_with_the_lock_once(ctx: Context, marker: str) -> None:
    if is_first(marker):
        ctypes.PyDLL(None).sleep(LONG_SECONDS)


def fork_and_die(ctx: Context, argument: str) -> None:
    """Die, and leave a forked child behind, which has every descriptor of its parent."""
    if os.fork() == 0:
        time.sleep(LONG_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def fork_and_die_once(ctx: Context, marker: str) -> None:
    if is_first(marker):
        fork_and_die(ctx, marker)


def spawn_and_die_once(ctx: Context, marker: str) -> None:
    """Die, and leave a subprocess behind, with every descriptor that it can inherit."""
    if is_first(marker):
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG_SECONDS})"], close_fds=False)
        os.kill(os.getpid(), signal.SIGKILL)


def fork_and_go_on(ctx: Context, argument: str) -> None:
    """Fork a child that closes the inherited descriptors and ends. The locks of its parent must stay held."""
    child = os.fork()
    if child == 0:
        os.closerange(3, 256)
        os._exit(0)
    os.waitpid(child, 0)


def call_back_for_ever(ctx: Context, argument: str) -> None:
    ctx.after_commit(time.sleep, LONG_SECONDS)


def fork_and_return(ctx: Context, argument: str) -> None:
    """Fork a child that returns from the handler, as its parent does."""
    child = os.fork()
    if child == 0:
        return
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != EXIT_FORKED:
        raise RuntimeError(f"the child ended with {status}")


def break_settling(ctx: Context, argument: str) -> None:
    """Make every later settling of this message fail in this process, as a defect of Stagepost does."""
    broken = ctx.message_id
    write = Settlement._write

    def refuse_to_write(settlement: Settlement, stage: Any, claim: Claim, outcome: Any) -> None:
        if claim.message_id == broken:
            raise RuntimeError("told to break")
        write(settlement, stage, claim, outcome)

    setattr(Settlement, "_write", refuse_to_write)  # noqa: B010 - mypy takes a method for something that stays
    fail(ctx, argument)


def set_factories(ctx: Context, argument: str) -> None:
    """Make the lent connection return rows and texts of another kind than Stagepost reads."""
    if isinstance(ctx.connection, sqlite3.Connection):
        ctx.connection.row_factory = sqlite3.Row
        ctx.connection.text_factory = bytes
    else:
        ctx.connection.row_factory = dict_row
        ctx.connection.cursor_factory = psycopg.ClientCursor


# Ways to end the transaction past Stagepost.

kept = threading.local()


def close_what_was_kept(ctx: Context, argument: str) -> None:
    """Close the connection of the run before, past its guard, before this one touches it."""
    if hasattr(kept, "connection"):
        sqlite3.Connection.close(kept.connection)
        del kept.connection
    else:
        kept.connection = ctx.connection


def commit_by_the_base_class(ctx: Context, argument: str) -> None:
    sqlite3.Connection.commit(ctx.connection)


def commit_by_a_plain_cursor(ctx: Context, argument: str) -> None:
    sqlite3.Cursor(ctx.connection).execute("COMMIT")


def write_by_a_plain_cursor(ctx: Context, argument: str) -> None:
    """Write before the stage's transaction is open. Stagepost does not see it."""
    sqlite3.Cursor(ctx.connection).execute(
        "INSERT INTO ledger (flow_id, stage, account, amount, process) VALUES (?, ?, 'behind', 0, 0)",
        (ctx.flow_id, ctx.stage),
    )
    raise RuntimeError("told to fail")


def hide_a_commit(ctx: Context, argument: str) -> None:
    ctx.sql("/* nothing to see */ -- here\n ; COMMIT")


def roll_back_by_conflict(ctx: Context, argument: str) -> None:
    """Let SQLite end the whole transaction. It would commit each later statement at once."""
    ctx.sql("INSERT INTO scratch (name) VALUES ('one')")
    with suppress(sqlite3.IntegrityError):
        ctx.sql("INSERT OR ROLLBACK INTO scratch (name) VALUES ('one')")
    with suppress(TransactionEnded):
        ctx.sql("INSERT INTO scratch (name) VALUES ('two')")


def roll_back_by_conflict_and_write(ctx: Context, argument: str) -> None:
    """Write past the guard, with a plain cursor, after the transaction has ended."""
    ctx.sql("INSERT INTO scratch (name) VALUES ('one')")
    with suppress(sqlite3.IntegrityError):
        ctx.sql("INSERT OR ROLLBACK INTO scratch (name) VALUES ('one')")
    write_by_a_plain_cursor(ctx, argument)


def close_the_connection(ctx: Context, argument: str) -> None:
    sqlite3.Connection.close(ctx.connection)


HANDLER_FAULTS: dict[str, Callable[[Context, str], None]] = {
    "fail": fail,
    "refuse": refuse,
    "fail-once": fail_once,
    "fail-while": fail_while,
    "fail-unless": fail_unless,
    "wait-while": wait_while,
    "fail-unprintably": fail_unprintably,
    "sigkill": sigkill,
    "kill-once": kill_once,
    "exit": exit_at_once,
    "quit": quit_python,
    "talk": talk,
    "segfault": segfault,
    "crash-the-backend": crash_the_backend,
    "crash-the-backend-once": crash_the_backend_once,
    "count": count,
    "write-much": write_much,
    "slow": slow,
    "gate": gate,
    "gate-once": gate_once,
    "spin": spin,
    "long-statement": long_statement,
    "swallow": swallow,
    "swallow-once": swallow_once,
    "swallow-and-write": swallow_and_write,
    "stuck": stuck,
    "stuck-once": stuck_once,
    "stuck-with-the-lock": stuck_with_the_lock,
    "stuck-with-the-lock-once": stuck_with_the_lock_once,
    "fork-and-die": fork_and_die,
    "fork-and-die-once": fork_and_die_once,
    "spawn-and-die-once": spawn_and_die_once,
    "fork-and-go-on": fork_and_go_on,
    "fork-and-return": fork_and_return,
    "break-settling": break_settling,
    "set-factories": set_factories,
    "call-back-for-ever": call_back_for_ever,
    "close-what-was-kept": close_what_was_kept,
    "commit-by-the-base-class": commit_by_the_base_class,
    "commit-by-a-plain-cursor": commit_by_a_plain_cursor,
    "write-by-a-plain-cursor": write_by_a_plain_cursor,
    "hide-a-commit": hide_a_commit,
    "roll-back-by-conflict": roll_back_by_conflict,
    "roll-back-by-conflict-and-write": roll_back_by_conflict_and_write,
    "close-the-connection": close_the_connection,
}


# At a step of a stage


def once(step: str, stage: str, occurrence: str, marker: str, then: StepListener) -> StepListener:
    """Call ``then`` at that occurrence of the step, or later: in the first process, of all, to make the marker file."""
    passed = 0

    def listen(current: Step, claim: Claim) -> None:
        nonlocal passed
        if current == step and stage in ("*", claim.stage):
            passed += 1
            if passed >= int(occurrence) and is_first(marker):
                then(current, claim)

    return listen


def killed_once(words: str) -> StepListener:
    """``words`` are ``step,stage,occurrence,marker``: send SIGKILL there."""
    step, stage, occurrence, marker = words.split(",")
    return once(step, stage, occurrence, marker, kill_at(step))
