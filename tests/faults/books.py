"""One bank's database, seen from outside: flows are put in, and afterwards everything is counted.

``problems`` is the one judgement of all fault tests. It knows nothing of how the library works: it counts entries in a
ledger that has no key, what is left in the queue, and what the journal says was sent. How each store is asked is in
``sqlite_books`` and ``postgres_books``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stagepost.app.app import engine_of
from stagepost.flow.ids import derived
from tests import books
from tests.faults.bank import Bank, Chore, Transfer, open_bank

SENT_IN_A_ROUND = ("chore", "errand", "chore")
TRANSFER_STAGES = ("bank.transfer", "bank.fraud", "bank.transfer.credit", "bank.transfer.confirm", "bank.done")


@dataclass(frozen=True)
class Flow:
    """``dies_at``: the stage in which it is to become a dead letter, leaving the entries of the stages before, or in a
    round those of its siblings too."""

    flow_id: str
    kind: Literal["transfer", "chore", "errand", "round"] = "transfer"
    fault: str = ""
    dies_at: str | None = None

    @property
    def entries(self) -> list[tuple[str, str, int]]:
        """Stage, account, amount of what it is to leave in the ledger."""
        source, target = f"{self.flow_id}/from", f"{self.flow_id}/to"
        if self.kind == "round":
            sent = [(f"bank.{each}", f"{self.flow_id}/{n}", 0) for n, each in enumerate(SENT_IN_A_ROUND, 1)]
            return [each for each in [("bank.round", self.flow_id, 0), *sent] if each[0] != self.dies_at]
        if self.kind == "transfer":
            left = [(stage, source, 0) for stage in TRANSFER_STAGES]
            left[0] = ("bank.transfer", source, -100)
            left[2] = ("bank.transfer.credit", target, 100)
        else:
            left = [(f"bank.{self.kind}", self.flow_id, 0)]
        stages = [stage for stage, _, _ in left]
        return left if self.dies_at is None else left[: stages.index(self.dies_at)]


def transfers(count: int, fault: str = "", name: str = "t") -> list[Flow]:
    return [Flow(f"{name}{number}", fault=fault) for number in range(count)]


def chores(count: int, fault: str = "", name: str = "c") -> list[Flow]:
    return [Flow(f"{name}{number}", "chore", fault) for number in range(count)]


class Books(books.Books):
    """The bank's app finds its database at ``url``."""

    def __init__(self) -> None:
        # The settings of its workers, beside the URL.
        self.settings: dict[str, str] = {}
        engine_of(open_bank(self.url).app).store  # noqa: B018 - makes the tables

    def bank(self) -> Bank:
        return open_bank(self.url)

    @abstractmethod
    def registered(self) -> int:
        """Return how many proofs of life there are, of the living and of the dead."""

    @abstractmethod
    def hearts_beat_since(self, moment: float) -> int:
        """Return how many workers have shown a sign of life after that moment."""

    @abstractmethod
    def close(self) -> None: ...

    def start(self, flows: Sequence[Flow], *, delay: float = 0) -> None:
        bank = self.bank()
        with self.connected() as connection:
            with bank.app.initiate(connection=connection) as out:
                for flow in flows:
                    if flow.kind == "transfer":
                        order = Transfer(f"{flow.flow_id}/from", f"{flow.flow_id}/to", 100, flow.fault)
                        out.send(bank.transfer, order, flow_id=flow.flow_id, reply_to=bank.done, delay=delay)
                    else:
                        target = {"chore": bank.chore, "errand": bank.errand, "round": bank.round}[flow.kind]
                        out.send(target, Chore(flow.flow_id, flow.fault), flow_id=flow.flow_id, delay=delay)
            connection.commit()

    # What happened

    def entries(self) -> int:
        return self.number("SELECT count(*) FROM ledger")

    def letters(self) -> list[tuple[str, str, str, int, int]]:
        """Flow, stage, reason, failures and deaths of each dead letter."""
        return self.rows("SELECT flow_id, stage, reason, failures, deaths FROM stagepost_dead_letter ORDER BY flow_id")

    def moves(self) -> int:
        """Grows with whatever happens to a message."""
        return self.number("SELECT coalesce(max(id), 0) FROM stagepost_journal")

    def blamed(self, waypoint: Literal["failed", "died"]) -> list[str]:
        """Whose attempts were counted as having failed, or died."""
        found = self.rows("SELECT flow_id, stage, detail FROM stagepost_journal WHERE waypoint = ?", waypoint)
        return [f"{waypoint}: {flow_id} at {stage}: {detail}" for flow_id, stage, detail in found]

    # What is wrong with it

    def problems(self, flows: Sequence[Flow]) -> list[str]:
        """Everything in which the outcome differs from exactly once; nothing where all is well."""
        return [
            *self._ledger_problems(flows),
            *self._queue_problems(flows),
            *self._journal_problems(),
            *self._store_problems(),
        ]

    def _ledger_problems(self, flows: Sequence[Flow]) -> list[str]:
        expected = Counter((flow.flow_id, *entry) for flow in flows for entry in flow.entries)
        found = Counter(self.rows("SELECT flow_id, stage, account, amount FROM ledger"))
        problems = [f"lost: {entry} of {flow_id}" for flow_id, *entry in sorted((expected - found).elements())]
        for flow_id, *entry in sorted((found - expected).elements()):
            kind = "doubled" if (flow_id, *entry) in expected else "unexpected"
            problems.append(f"{kind}: {entry} of {flow_id}")
        balance = sum(amount for _, _, _, amount in found.elements())
        should_be = sum(amount for _, _, _, amount in expected.elements())
        if balance != should_be:
            problems.append(f"money: the bank's accounts add up to {balance}, not to {should_be}")
        return problems

    def _queue_problems(self, flows: Sequence[Flow]) -> list[str]:
        problems = []
        waiting = self.waiting()
        if waiting:
            problems.append(f"left: {waiting} messages in the queue")
        expected = Counter((flow.flow_id, flow.dies_at) for flow in flows if flow.dies_at is not None)
        buried = Counter((flow_id, stage) for flow_id, stage, *_ in self.letters())
        problems += [f"buried: {each}" for each in sorted((buried - expected).elements())]
        problems += [f"not buried: {each}" for each in sorted((expected - buried).elements())]
        return problems

    def _journal_problems(self) -> list[str]:
        problems = []
        # Every message that came to be is committed once, or is a dead letter.
        came = Counter(
            message
            for (message,) in self.rows(
                "SELECT message_id FROM stagepost_journal WHERE waypoint IN ('accepted', 'sent')"
            )
        )
        ended = Counter(
            message
            for (message,) in self.rows(
                "SELECT message_id FROM stagepost_journal WHERE waypoint IN ('committed', 'dead')"
            )
        )
        # A stage that pauses takes back the dead letters of its outage.
        ended -= Counter(
            message for (message,) in self.rows("SELECT message_id FROM stagepost_journal WHERE waypoint = 'replayed'")
        )
        problems += [f"journal: {each} came to be {count} times" for each, count in came.items() if count > 1]
        problems += [f"journal: {each} ended {count} times" for each, count in ended.items() if count > 1]
        problems += [f"journal: {each} never ended" for each in came.keys() - ended.keys()]
        problems += [f"journal: {each} ended and never began" for each in ended.keys() - came.keys()]
        # An outgoing id says what it was sent for, and nothing else: the same attempt, repeated, sends the same.
        sent = self.rows(
            "SELECT s.message_id, s.cause_id, c.stage, s.kind, s.stage, s.ordinal FROM stagepost_journal AS s"
            " JOIN stagepost_journal AS c ON c.message_id = s.cause_id AND c.waypoint = 'committed'"
            " WHERE s.waypoint = 'sent'"
        )
        for message, cause, stage, kind, target, ordinal in sent:
            if message != derived(cause, stage, 0, kind, target, ordinal):
                problems.append(f"id: {message}, sent to {target}, does not follow from {cause} at {stage}")
        return problems

    def _store_problems(self) -> list[str]:
        """What was left in the database itself."""
        return []
