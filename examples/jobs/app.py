"""Hand out the jobs of a table. One transaction, the caller's, takes a job and starts the flow that works on it.

    psql URL -f examples/jobs/schema.sql
    STAGEPOST_DATABASE=URL python -m examples.jobs.app
    STAGEPOST_DATABASE=URL stagepost worker examples.jobs.app:app

The id of a job is the id of its flow, and of the message that starts it. So a repeated attempt starts no second flow.
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
    """Hand out the job ``job_id``, or any free one. Return its id, or None if no job is free.

    Raises ``NothingSent`` if the job is still free. Raises ``OutcomeUnknown`` if the commit may have succeeded; the
    caller then asks for the same job again.
    """
    try:
        # A connection that closes without a commit releases the job.
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
        raise OutcomeUnknown(f"{job_id} may or may not have been handed out: {error}", [job_id]) from error


def hand_out(connect: Callable[[], Connection], wait: Callable[[float], None] = time.sleep) -> list[str]:
    """Hand out all free jobs. Wait while the database is unavailable."""
    handed_out: list[str] = []
    in_doubt: str | None = None
    while True:
        try:
            job_id = allocate(connect, in_doubt)
        except NothingSent:
            wait(PAUSE_SECONDS)
            continue
        except OutcomeUnknown as unknown:
            # The commit may have succeeded. The next attempt asks for the same job, whose flow cannot start twice.
            (in_doubt,) = unknown.message_ids
            wait(PAUSE_SECONDS)
            continue
        in_doubt = None
        if job_id is None:
            return handed_out
        handed_out.append(job_id)


if __name__ == "__main__":
    print("\n".join(hand_out(partial(psycopg.connect, app.database))))
