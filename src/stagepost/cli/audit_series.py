"""A series of audits: each continues from the state that the one before it left, and names its own in the store."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import DeclarationError, StagepostError
from stagepost.flow.ids import RandomIds
from stagepost.ports.audits import AuditFinding, NamedState
from stagepost.ports.session import Session

PREFIX = "audit-"
OURS = re.compile(rf"{PREFIX}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")
# A crash leaves a folder that no store names. Younger ones may belong to an audit that still runs.
LEFT_BEHIND_SECONDS = 7 * 86_400


class AuditConflict(StagepostError):
    """Another audit of the same series ended first."""

    code = "audit-conflict"


@dataclass(frozen=True, slots=True)
class AuditSeries:
    """One turn of a series.

    ``name``    the folder of all its states, by which the store knows it
    ``former``  the state that the store named when the turn began
    ``folder``  the new state's folder, which does not exist yet
    """

    name: Path
    former: NamedState | None
    folder: Path

    @classmethod
    def begin(cls, folder: Path, session: Session, clock: Clock) -> AuditSeries:
        """Raises ``DeclarationError`` if the folder cannot be made."""
        name = folder.resolve()
        try:
            name.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeclarationError(
                f"--state {folder}: the folder cannot be made: {error.strerror}. Change its permissions, or name "
                "another one."
            ) from error
        minted = RandomIds(clock, SystemRandom()).mint()
        return cls(name, session.audits.state(str(name)), name / f"{PREFIX}{minted}")

    def end(self, session: Session, findings: list[AuditFinding], position: int, now: int) -> None:
        """Name the new state and keep the findings, in one commit. Raises ``AuditConflict``, and then keeps nothing."""
        state = NamedState(str(self.folder), str(position))
        session.begin()
        try:
            is_named = session.audits.name_state(str(self.name), self.former, state, now)
            if is_named:
                session.audits.note(findings, now)
        except BaseException:
            session.rollback()
            raise
        if not is_named:
            session.rollback()
            self.abandon()
            raise AuditConflict(
                f"another audit with --state {self.name} ended meanwhile, and the store names its state. Nothing of "
                "this audit was kept. Run it again: it continues from that state."
            )
        session.commit()
        self._sweep(now)

    def abandon(self) -> None:
        """Remove the new state. Call it only before the commit that names it, because a commit may have stood."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _sweep(self, now: int) -> None:
        """Remove the state that was replaced, and states that crashed audits left behind."""
        for each in self.name.iterdir():
            if each == self.folder or not OURS.fullmatch(each.name):
                continue
            try:
                age = now / SECOND - each.stat().st_mtime
            except FileNotFoundError:
                # Another audit of this series removed it.
                continue
            if age > LEFT_BEHIND_SECONDS or (self.former is not None and str(each) == self.former.folder):
                shutil.rmtree(each, ignore_errors=True)
