"""Those who only asked and are gone: in an app that has no workers nobody else looks after them."""

from __future__ import annotations

import math

from stagepost.app.app import App
from stagepost.app.stores import Access
from stagepost.liveness.proof import survey_of
from stagepost.liveness.replies import asks_only

# On another machine somebody is seen to be gone by looking again and again.
LOOK_SECONDS = 15.0


class Predecessors:
    """One thread's, of one that asks."""

    def __init__(self, app: App, access: Access, node: str) -> None:
        self._app = app
        self._transport = access.transport
        self._node = node
        self._survey = survey_of(app.store, app.name, app.clock)
        self._looked_at = -math.inf

    @property
    def is_to_look(self) -> bool:
        return self._app.clock.monotonic() - self._looked_at > LOOK_SECONDS

    def tidy_up(self) -> None:
        """What they held is given back, and their proofs of life are removed. Raises ``StoreError``."""
        self._looked_at = self._app.clock.monotonic()
        try:
            for each in self._survey.look():
                if each.state == "dead" and asks_only(each.record.header.node):
                    self._transport.release(self._transport.unattended(each.record.header.owner), self._node)
                    self._survey.forget(each)
        finally:
            # No connection is kept from one look to the next.
            self._survey.close()
