"""Hand out the jobs of a table over a broker, in the mode ``best_effort``: the database commits, and then the broker.

A broker that is lost between the two commits leaves a job handed out, and perhaps no message. The error says so, and
``hand_out`` takes the job back. Its id is the id of the message, so a second hand-out of it starts no second flow.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from stagepost import App, CommittedButMaybeNotSent, NothingSent
from stagepost.flow.target import Target

TAKE_ANY = """
    UPDATE job SET is_handed_out = true
    WHERE id = (SELECT id FROM job WHERE NOT is_handed_out ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id
"""
TAKE_BACK = "UPDATE job SET is_handed_out = false WHERE id = %s"


@dataclass
class Job:
    id: str


def hand_out(app: App, work: Target[Job, None], database: str) -> str | None:
    """Hand out a free job. Return its id, or None if no job is free.

    Raises ``CommittedButMaybeNotSent`` and ``NothingSent``, after it has taken the job back.
    """
    with psycopg.connect(database) as connection:
        found = connection.execute(TAKE_ANY).fetchone()
    if found is None:
        return None
    job_id = str(found[0])
    try:
        app.start(work, Job(job_id), flow_id=job_id, message_id=job_id)
    except (CommittedButMaybeNotSent, NothingSent):
        with psycopg.connect(database) as connection:
            connection.execute(TAKE_BACK, (job_id,))
        raise
    return job_id
