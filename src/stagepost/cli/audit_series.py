"""A series of audits: each continues from the state that the one before it left, and names its own in the store."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import Self, TypeVar

from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import DeclarationError, StagepostError
from stagepost.flow.ids import RandomIds
from stagepost.flow.texts import as_sentence
from stagepost.ports.audits import AuditFinding, NamedState
from stagepost.ports.session import Session

PREFIX = "audit-"
OURS = re.compile(rf"{PREFIX}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")
# A crash leaves a folder that no store names. Younger ones may belong to an audit that still runs.
LEFT_BEHIND_SECONDS = 7 * 86_400
# So many states are read at most, if each is replaced while it is read.
READINGS_MAX = 5

State = TypeVar("State")


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
                f"--state {folder}: the folder cannot be made: {as_sentence(error.strerror)} "
                "Change its permissions, or name "
                "another one."
            ) from error
        minted = RandomIds(clock, SystemRandom()).mint()
        return cls(name, session.audits.state(str(name)), name / f"{PREFIX}{minted}")

    def read_former(self, session: Session, read: Callable[[Path], State]) -> tuple[Self, State | None]:
        """Return the turn and the state from which it continues, which is None for the first turn of a series.

        Another audit that ends meanwhile removes the files of the state that it replaces. Then the turn continues from
        the state that the store names by now. Raises the error of ``read`` for a state that is still the named one, and
        ``AuditConflict`` if each state was replaced while it was read.
        """
        turn = self
        for _ in range(READINGS_MAX):
            if turn.former is None:
                return turn, None
            try:
                return turn, read(Path(turn.former.folder))
            except StagepostError:
                named = session.audits.state(str(turn.name))
                if named == turn.former:
                    raise
                turn = replace(turn, former=named)
        raise turn.conflict()

    def is_overtaken(self, session: Session) -> bool:
        """Return whether the store names another state than when the turn began."""
        return session.audits.state(str(self.name)) != self.former

    def conflict(self) -> AuditConflict:
        return AuditConflict(
            f"another audit with --state {self.name} ended meanwhile, and the store names its state. Nothing of "
            "this audit was kept. Run it again: it continues from that state."
        )

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
            raise self.conflict()
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
