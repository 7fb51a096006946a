"""The beginning of an audit of a series, while other audits of the same series end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from stagepost.app.app import engine_of
from stagepost.cli.audit import AuditCommand
from stagepost.cli.audit_series import AuditConflict
from stagepost.pipeline.jobs.audit import AuditTerms
from stagepost.pipeline.jobs.audit_state import AuditState, AuditStateUnusable
from stagepost.ports.session import Session
from tests.pipeline.audit_turns import OvertakenReader, a_turn, end_a_turn
from tests.pipeline.books import SqliteBooks


@pytest.fixture
def session(books: SqliteBooks) -> Iterator[Session]:
    with closing(engine_of(books.app).access().session) as made:
        yield made


@pytest.mark.parametrize("times", [1, 2])
def test_an_audit_reads_the_newest_state_if_another_one_replaces_the_one_it_reads(
    tmp_path: Path, session: Session, books: SqliteBooks, times: int
) -> None:
    folder = tmp_path / "states"
    end_a_turn(folder, session, 1)
    reader = OvertakenReader(folder, repeat(session, times))
    job = SimpleNamespace(AuditState=reader)
    begun = AuditCommand(job, AuditTerms(), books.url, folder, None, None, None, None).begin()
    assert begun.series is not None
    assert reader.last is not None
    assert begun.series.former == (str(reader.last.folder), str(times + 1))
    assert (begun.former.folder, begun.former.position) == (reader.last.folder, times + 1)


def test_an_audit_whose_states_are_all_replaced_is_in_conflict_with_the_others(
    tmp_path: Path, session: Session
) -> None:
    end_a_turn(tmp_path, session, 1)
    reader = OvertakenReader(tmp_path, repeat(session))
    with pytest.raises(AuditConflict, match="Run it again"):
        a_turn(tmp_path, session).read_former(session, reader.read)


def test_a_named_state_that_cannot_be_used_is_read_once(tmp_path: Path, session: Session) -> None:
    first = end_a_turn(tmp_path, session, 1)
    (first.folder / "state.json").unlink()
    reads: list[Path] = []

    def read(folder: Path) -> AuditState:
        reads.append(folder)
        return AuditState.read(folder, 60)

    with pytest.raises(AuditStateUnusable, match="cannot be read"):
        a_turn(tmp_path, session).read_former(session, read)
    assert reads == [first.folder]
