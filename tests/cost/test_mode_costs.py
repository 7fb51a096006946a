"""What a message costs where its stage's data is in one PostgreSQL and its messages in another: statements and round
trips, and which of them a transaction of the stages' database waits for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.job import Noted
from stagepost import App, Context, Target
from stagepost.app.app import engine_of
from stagepost.store.postgres.inbox import WAIT_AS_BEFORE, WAIT_SHORTLY
from stagepost.store.postgres.session import BEGIN, COMMIT, NOT_DURABLE
from stagepost.store.postgres.statements import SQL
from stagepost.testing import Harness
from stagepost.transaction.stage import Mode
from tests.cost.test_postgres_costs import Sent, sent

__all__ = ["sent"]


def round_trips_of_one(new_postgres: Callable[[], str], sent: Sent, mode: Mode, *, works: bool) -> list[list[bytes]]:
    app = App("bench", database=new_postgres(), queue=new_postgres(), mode=mode)
    other: Target[Noted, None] = app.remote("other", Noted)

    @app.endpoint("one")
    def one(ctx: Context, message: Noted) -> None:
        if works:
            ctx.sql("SELECT 1")
        ctx.send(other, message)

    app.start(one, Noted(1), flow_id="one")
    engine_of(app).listener = sent.forget
    harness = Harness(app)
    harness.run_one()
    found = list(sent.round_trips)
    harness.close()
    return found


def names(round_trips: list[list[bytes]]) -> list[list[str]]:
    known = {statement.text: name for name, statement in SQL.items()}
    known |= {BEGIN.text: "begin", COMMIT.text: "commit", NOT_DURABLE.text: "not durable"}
    known |= {WAIT_SHORTLY.text: "wait shortly", WAIT_AS_BEFORE.text: "wait as before"}
    return [
        [known.get(text, text.decode().split(" VALUES")[0].split(" '")[0]) for text in each] for each in round_trips
    ]


JOURNAL = "INSERT INTO stagepost_journal"


def shortened(round_trips: list[list[str]]) -> list[list[str]]:
    return [["journal" if each.startswith(JOURNAL) else each for each in round_trip] for round_trip in round_trips]


@pytest.mark.parametrize("works", [False, True])
def test_outbox_is_four_round_trips_and_one_for_each_statement_of_the_handler(
    new_postgres: Callable[[], str], sent: Sent, works: bool
) -> None:
    round_trips = shortened(names(round_trips_of_one(new_postgres, sent, "outbox", works=works)))
    assert round_trips == [
        ["begin", "wait shortly", "admit_message"],
        *([["wait as before", "SELECT 1"], ["keep_produced", "commit"]] if works else []),
        *([] if works else [["wait as before", "keep_produced", "commit"]]),
        ["begin", "take_claimed", "put_ready", "journal", "commit"],
        ["begin", "not durable", "mark_sent", "commit"],
    ]


@pytest.mark.parametrize("works", [False, True])
def test_two_phase_is_four_round_trips_and_one_for_each_statement_of_the_handler(
    new_postgres: Callable[[], str], sent: Sent, works: bool
) -> None:
    round_trips = shortened(names(round_trips_of_one(new_postgres, sent, "two_phase", works=works)))
    assert round_trips == [
        *([["begin", "SELECT 1"]] if works else []),
        # Of the two that begin, one is the stages' own, and flies with its decision.
        [*([] if works else ["begin"]), "begin", "take_claimed", "put_ready", "journal", "PREPARE TRANSACTION"],
        ["wait shortly", "decide"],
        ["wait as before", "commit"],
        ["COMMIT PREPARED"],
    ]
