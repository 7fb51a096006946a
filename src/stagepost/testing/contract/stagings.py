"""Contract of ``ports.staging.Staging``: rows that tasks stage, and the one transaction that starts their flows."""

from __future__ import annotations

import pytest

from stagepost.flow.codec import encode_envelope
from stagepost.flow.errors import StoreContention
from stagepost.ports.runs import RunCounts
from stagepost.ports.session import Session
from stagepost.ports.staging import BATCHES_KEPT, BatchContent, BatchKey, StagedFlows, StagedRow
from stagepost.testing.contract.givens import LONG_ID, NOW, Given, an_acceptance, committed, rolled_back

KEY = BatchKey("pay", "query", 3)
CONTENT = BatchContent(2, "d" * 64)
FLOWS = StagedFlows("pay", "pay", "send", "spark@here", KEY.run_id)
NOTHING = RunCounts(0, 0, 0, 0)


def a_staged_row(place: int, name: str, digest: str = "d1", *, reason: str | None = None) -> StagedRow:
    """A row of the flow ``name``, which cannot be started if there is a reason."""
    address = f"sha256:{name}{digest}"
    if reason is not None:
        return StagedRow(place, address, None, name, None, NOW, None, reason, "{}")
    envelope = encode_envelope(an_acceptance(name, "pay").outgoing.envelope)
    return StagedRow(place, address, name, name, digest, NOW, envelope, None, '{"n": "zwölf"}')


def staged(session: Session, token: str, *rows: StagedRow, key: BatchKey = KEY, now: int = NOW) -> None:
    with committed(session):
        session.staging.open(token, key, now)
    with committed(session):
        session.staging.add(token, rows)


def counted(session: Session, *tokens: str) -> RunCounts:
    with committed(session):
        return session.staging.start(tokens, FLOWS, NOW)


class StagingsContract(Given):
    """The store needs the capability ``staging``."""

    def test_staged_rows_start_their_flows_once_in_the_drivers_transaction(self, session: Session) -> None:
        staged(session, "t1", a_staged_row(1, "a"), a_staged_row(2, LONG_ID))
        staged(session, "t2", a_staged_row(1, "b"))
        staged(session, "failed", a_staged_row(1, "c"))
        with rolled_back(session):
            assert session.staging.start(["t1", "t2"], FLOWS, NOW) == RunCounts(3, 3, 0, 0)
        assert session.queue.claim(["pay"], 10, "w", NOW) == []
        assert counted(session, "t1", "t2") == RunCounts(3, 3, 0, 0)
        with committed(session):
            claims = session.queue.claim(["pay"], 10, "w", NOW)
        assert {each.message_id for each in claims} == {"a", "b", LONG_ID}
        assert {each.envelope for each in claims if each.message_id == "a"} == {a_staged_row(1, "a").envelope}
        (line,) = [each for each in session.journal.history("a") if each.waypoint == "accepted"]
        assert (line.stage, line.message_id, line.detail, line.node) == ("pay", "a", KEY.run_id, "spark@here")
        assert line.bytes == len(a_staged_row(1, "a").envelope or b"")

    def test_a_run_counts_its_own_keys_as_started_however_often_it_finds_them(self, session: Session) -> None:
        staged(session, "t1", a_staged_row(1, "a"), a_staged_row(2, "b"))
        assert counted(session, "t1") == RunCounts(2, 2, 0, 0)
        assert counted(session, "t1") == RunCounts(2, 2, 0, 0)
        with committed(session):
            assert len(session.queue.claim(["pay"], 10, "w", NOW)) == 2
        another = StagedFlows("pay", "pay", "send", "spark@here", "another")
        with committed(session):
            assert session.staging.start(["t1"], another, NOW) == RunCounts(2, 0, 2, 0)
            assert session.queue.claim(["pay"], 10, "w", NOW) == []

    def test_of_rows_with_one_key_the_least_digest_wins_and_others_are_quarantined(self, session: Session) -> None:
        staged(session, "t1", a_staged_row(1, "a", "d2"), a_staged_row(2, "a", "d1"), a_staged_row(3, "a", "d2"))
        staged(session, "t2", a_staged_row(1, "a", "d1"))
        assert counted(session, "t1", "t2") == RunCounts(4, 1, 1, 2)
        assert counted(session, "t1", "t2") == RunCounts(4, 1, 1, 2)
        found = session.runs.quarantined(KEY.run_id, 10)
        assert [(each.file, each.record) for each in found] == [("sha256:ad2", 1), ("sha256:ad2", 2)]
        assert "id-conflict: this content has the digest d2…, but pay accepted" in found[0].reason
        assert found[0].row == '{"n": "zwölf"}'

    def test_a_row_with_a_reason_starts_nothing(self, session: Session) -> None:
        staged(session, "t1", a_staged_row(1, "a", reason="no amount"), a_staged_row(2, "b"))
        assert counted(session, "t1") == RunCounts(2, 1, 0, 1)
        (row,) = session.runs.quarantined(KEY.run_id, 10)
        assert (row.reason, row.flow_id) == ("no amount", "a")

    def test_a_batch_is_entered_once(self, session: Session) -> None:
        with rolled_back(session):
            assert session.staging.enter(KEY, CONTENT, NOW) is None
        with committed(session):
            assert session.staging.enter(KEY, CONTENT, NOW) is None
        with committed(session):
            assert session.staging.enter(KEY, BatchContent(9, "other"), NOW) == CONTENT
            for other in (KEY._replace(sink="s"), KEY._replace(query="q"), KEY._replace(batch=4)):
                assert session.staging.enter(other, CONTENT, NOW) is None
            session.staging.replace(KEY, BatchContent(9, "other"), NOW)
        with committed(session):
            assert session.staging.enter(KEY, CONTENT, NOW) == BatchContent(9, "other")

    def test_discarded_rows_are_gone_and_their_task_can_add_no_more(self, session: Session) -> None:
        staged(session, "t1", a_staged_row(1, "a"))
        staged(session, "t2", a_staged_row(1, "b"))
        with committed(session):
            session.staging.discard(["t1", "unknown"])
            session.staging.discard([])
        with pytest.raises(StoreContention, match="were deleted while it ran"), committed(session):
            session.staging.add("t1", [a_staged_row(2, "c")])
        assert counted(session, "t1") == NOTHING
        assert counted(session, "t2") == RunCounts(1, 1, 0, 0)

    def test_sweeping_takes_the_querys_batch_and_earlier_ones_and_what_is_old(self, session: Session) -> None:
        keys = {
            "earlier": KEY._replace(batch=2),
            "same": KEY,
            "later": KEY._replace(batch=4),
            "sink": KEY._replace(sink="ship"),
            "query": KEY._replace(query="other"),
        }
        for token, key in keys.items():
            staged(session, token, a_staged_row(1, token), key=key)
        staged(session, "old", a_staged_row(1, "old"), key=KEY._replace(query="dead"), now=NOW - 10)
        with committed(session):
            session.staging.sweep(KEY, NOW - 9)
        left = {token for token in [*keys, "old"] if counted(session, token) != NOTHING}
        assert left == {"later", "sink", "query"}

    def test_keys_of_old_batches_are_forgotten(self, session: Session) -> None:
        late = KEY._replace(batch=BATCHES_KEPT + 3)
        with committed(session):
            for key in (KEY, KEY._replace(batch=4), KEY._replace(query="other"), late):
                session.staging.enter(key, CONTENT, NOW - 99)
            session.staging.enter(BatchKey("pay", "old"), CONTENT, NOW - 10)
            session.staging.enter(BatchKey("pay", "new"), CONTENT, NOW)
            session.staging.sweep(late, NOW - 9)
        with committed(session):
            assert session.staging.enter(KEY, CONTENT, NOW) is None
            assert session.staging.enter(BatchKey("pay", "old"), CONTENT, NOW) is None
            for key in (KEY._replace(batch=4), KEY._replace(query="other"), late, BatchKey("pay", "new")):
                assert session.staging.enter(key, CONTENT, NOW) == CONTENT
