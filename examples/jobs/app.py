"""Hands out jobs from a table. Taking one and starting the flow that works on it are one transaction, the caller's own.

    psql URL -f examples/jobs/schema.sql
    STAGEPOST_DATABASE=URL python -m examples.jobs.app
    STAGEPOST_DATABASE=URL stagepost worker examples.jobs.app:app

A job's id is the id of its flow, and of the message that starts it. So what is tried again is never started twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from stagepost import App, Context, NothingSent, OutcomeUnknown

app = App("jobs")

PAUSE_SECONDS = 1.0

Connection = psycopg.Connection[Any]

TAKE_ANY = """
    UPDATE job SET is_handed_out = true
    WHERE id = (SELECT id FROM job WHERE NOT is_handed_out ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id
"""
TAKE = "UPDATE job SET is_handed_out = true WHERE id = %s RETURNING id"


@dataclass
class Job:
    id: str


@app.endpoint("jobs.work")
def work(ctx: Context, job: Job) -> None:
    ctx.sql("INSERT INTO job_done (job_id) VALUES (:id)", id=job.id)


def allocate(connect: Callable[[], Connection], job_id: str | None = None) -> str | None:
    """Hand out a job that is free, or this one, and return its id; None where none is left.

    Raises ``NothingSent``, and the job is free as before, or ``OutcomeUnknown``: then ask for that very one again.
    """
    try:
        # Closed without a commit, it has given the job back.
        with closing(connect()) as connection:
            found = connection.execute(*((TAKE_ANY,) if job_id is None else (TAKE, (job_id,)))).fetchone()
            if found is None:
                return None
            (taken,) = found
            with app.initiate(connection=connection) as out:
                out.send(work, Job(taken), flow_id=taken, message_id=taken)
            _commit(connection, taken)
    except psycopg.OperationalError as error:
        raise NothingSent(f"no job was handed out: {error}") from error
    return str(taken)


def _commit(connection: Connection, job_id: str) -> None:
    try:
        connection.commit()
    except psycopg.OperationalError as error:
        raise OutcomeUnknown(f"whether {job_id} was handed out is not known: {error}", [job_id]) from error


def hand_out(connect: Callable[[], Connection], wait: Callable[[float], None] = time.sleep) -> list[str]:
    """All that are free, however often the database goes away meanwhile."""
    handed_out: list[str] = []
    in_doubt: str | None = None
    while True:
        try:
            job_id = allocate(connect, in_doubt)
        except NothingSent:
            wait(PAUSE_SECONDS)
            continue
        except OutcomeUnknown as unknown:
            # Not the next one: this one is handed out, or free, and nobody knows. Asked for again, it is handed out,
            # and its flow, if it was started, is not started twice.
            (in_doubt,) = unknown.message_ids
            wait(PAUSE_SECONDS)
            continue
        in_doubt = None
        if job_id is None:
            return handed_out
        handed_out.append(job_id)


if __name__ == "__main__":
    print("\n".join(hand_out(partial(psycopg.connect, app.database))))
