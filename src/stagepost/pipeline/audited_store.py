"""The state of a store when an audit of it begins. Reading it needs no Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from stagepost.flow.clock import Clock
from stagepost.flow.errors import StoreError
from stagepost.pipeline.report.advice import LetterFacts, StageTerms
from stagepost.pipeline.report.growth import StoreSize
from stagepost.ports.dead_letters import DeadLetters, LetterGroup, Selection
from stagepost.ports.findings import GIB
from stagepost.ports.journal import Position
from stagepost.ports.outbox import Backlog
from stagepost.ports.registry import driver_of
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.runtime.access import Access
from stagepost.transaction.retention import address_of, read_rules


@dataclass(frozen=True, slots=True)
class AuditedStore:
    """The journal's position with its time, and what an audit reports beside the journal.

    ``held``      the number of started flows that the queue does not have yet; None if their database is away
    ``archived``  the archived lines of the journal, if they are to be read too
    """

    url: str
    at: int
    until: Position
    unseen: Backlog
    held: int | None
    archived: Any
    letters: list[LetterFacts]
    stages: dict[str, StageTerms]
    size: StoreSize

    @classmethod
    def read(
        cls,
        store: Store,
        access: Access,
        clock: Clock,
        *,
        free_gib: float | None = None,
        archived_of: Callable[[Session], Any] = lambda session: None,
    ) -> Self:
        """Read the present state. ``archived_of`` finds the archived lines before the position is read."""
        session = access.session
        # The time is read before the position, so rows written between belong to a window that is not over.
        at = clock.now()
        archived = archived_of(session)
        until = session.journal.position()
        return cls(
            url=store.address,
            at=at,
            until=until,
            unseen=session.journal.since(until).lines,
            held=held_by(access),
            archived=archived,
            letters=[_with_cause(session.dead_letters, each) for each in session.dead_letters.groups()],
            stages=_terms_of_stages(session),
            size=_size_of(store.address, free_gib),
        )

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the audit's job."""
        return {
            "until": self.until,
            "at": self.at,
            "unseen": self.unseen,
            "letters": self.letters,
            "stages": self.stages,
            "store": self.size,
            "archived": self.archived,
        }


def held_by(access: Access) -> int | None:
    """Count the started flows that have not reached the queue; None if the stages' database is away."""
    try:
        return access.held().size
    except StoreError:
        return None


def _terms_of_stages(session: Session) -> dict[str, StageTerms]:
    """Return the message types of each declared stage, and how long ids of its messages are kept."""
    rules, scopes = read_rules(session), session.retention.scopes()
    inboxes = set(session.retention.inbox_stages())
    found = {}
    for each in session.declarations.listed():
        kept = [rules.of_scope(scope) for scope in scopes if each.stage in (scope, address_of(scope))]
        if each.stage in inboxes:
            kept.append(rules.of_stage("inbox", each.stage))
        found[each.stage] = StageTerms(each.types, min((hours for hours in kept if hours is not None), default=None))
    return found


def _size_of(url: str, free_gib: float | None) -> StoreSize:
    export = driver_of(url).export(url)
    usage = export.disk_usage()
    if free_gib is not None:
        usage = usage._replace(free=round(free_gib * GIB))
    elif usage.free is None:
        usage = usage._replace(why=f"{usage.why}. Name it with --free GIB")
    return StoreSize(usage, is_purged=export.purged_until() is not None)


def _with_cause(dead_letters: DeadLetters, group: LetterGroup) -> LetterFacts:
    """Return the group with the cause of its latest letter, which may be gone by now."""
    for kept in dead_letters.select(Selection("id", group.latest_id)):
        cause = kept.letter.causes[0]
        return LetterFacts(group, f"{cause.type}: {cause.message}")
    return LetterFacts(group, "")
