"""Replies to those who are gone: nobody will take them, so they expire. Any worker sees to that, of whatever app."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from stagepost.app.app import App
from stagepost.app.stores import Access
from stagepost.flow.claim import Claim
from stagepost.liveness.proof import EVERY_APP, survey_of
from stagepost.liveness.replies import listening, owner_at
from stagepost.liveness.survey import Survey
from stagepost.transaction.outcome import Expired
from stagepost.transaction.settling import Settlement

AT_ONCE_MAX = 100

logger = logging.getLogger(__name__)


class Orphans:
    def __init__(self, app: App, access: Access, owner: str, node: str) -> None:
        self._app = app
        self._transport = access.transport
        self._owner = owner
        self._node = node
        self._settlement = Settlement(access.session, access.transport, app.clock, node, app.listener)
        self._survey: Survey | None = None
        self._has_left_some = False

    def sweep(self) -> int:
        """Once; returns how many expired. What it could not write, the next one does. Raises ``StoreError``."""
        held = self._held() if self._has_left_some else []
        self._has_left_some = True
        expired = self._expire(held) + self._expire_new()
        self._has_left_some = False
        return expired

    def _held(self) -> list[Claim]:
        return [each for each in self._transport.owned(self._owner) if owner_at(each.stage) is not None]

    def _expire_new(self) -> int:
        # First who is replied to, then who lives: the other way round, one that came in between would look dead.
        asking = {each: owner for each in self._transport.waiting_stages() if (owner := owner_at(each)) is not None}
        if not asking:
            return 0
        living = self._living()
        gone = [address for address, owner in asking.items() if owner not in living | listening]
        return sum(
            self._expire(self._transport.claim([address], AT_ONCE_MAX, self._owner, self._node)) for address in gone
        )

    def close(self) -> None:
        if self._survey is not None:
            self._survey.close()

    def _living(self) -> set[str]:
        if self._survey is None:
            self._survey = survey_of(self._app.store, EVERY_APP, self._app.clock)
        return {each.record.header.owner for each in self._survey.look() if each.state != "dead"}

    def _expire(self, claims: Sequence[Claim]) -> int:
        for claim in claims:
            self._settlement.settle(None, claim, Expired(f"{owner_at(claim.stage)}, which asked, is gone"))
        for owner, count in Counter(owner_at(claim.stage) for claim in claims).items():
            logger.warning("%d replies to %s expired, which is gone", count, owner, extra={"event": "replies-expired"})
        return len(claims)
