"""The thread that counts the hours of housekeeping, and purges the databases of an app.

Every process of every app has one. The process that counts an hour runs the purge of that hour, so one process purges
at a time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

from stagepost.flow.clock import Clock
from stagepost.flow.errors import StoreError
from stagepost.ports.registry import driver_of
from stagepost.ports.store import Store, apart_of
from stagepost.runtime.access import Access
from stagepost.runtime.engine import Engine
from stagepost.runtime.service import Service
from stagepost.transaction.database_wait import retried
from stagepost.transaction.effects_purge import purge_effects
from stagepost.transaction.purge_batches import Purged, PurgeListener, unobserved_purge
from stagepost.transaction.purging import Purge
from stagepost.transaction.queue_commit import committing
from stagepost.transaction.retention import Rules

# How often the thread looks whether another hour has begun.
TURN_SECONDS = 60.0
# A purge rests this much longer than it works, so it takes a twentieth of one connection's time. A pass that takes more
# than an hour takes a tenth from then on, or more rows might come than go.
REST = 19.0
REST_OF_A_LONG_PASS = 9.0
LONG_SECONDS = 3_600.0
REST_SECONDS_MAX = 30.0

logger = logging.getLogger(__name__)


def can_purge(engine: Engine) -> bool:
    """Say whether the databases of an app have the capability ``retention``."""
    databases = engine.databases
    return all("retention" in driver_of(url).capabilities for url in {databases.database, databases.queue} if url)


def count_hour(access: Access, clock: Clock) -> bool:
    """Count the present hour in each database. Returns False if the queue's database had counted it before."""
    now = clock.now()
    is_new = False
    for session in dict.fromkeys((access.work, access.session)):
        # Most looks change nothing, and must not wait for another writer then.
        is_new = not session.retention.is_counted(now)
        if is_new:
            with committing(session):
                is_new = session.retention.count_hour(now)
    return is_new


def purge_all(
    access: Access,
    store: Store | None = None,
    *,
    rules: Rules | None = None,
    dry_run: bool = False,
    listener: PurgeListener = unobserved_purge,
) -> Iterator[Purged]:
    """Purge each database, and yield each batch after its commit. Raises ``StoreError``.

    ``store``  the store of the queue, whose log of effects is purged too
    """
    for session in dict.fromkeys((access.session, access.work)):
        purge = Purge(session, access.session, access.work, rules=rules, dry_run=dry_run, listener=listener)
        yield from purge.run()
    apart = None if store is None else apart_of(store)
    if apart is not None:
        with closing(apart.session()) as session:
            yield from purge_effects(session, access.session, dry_run=dry_run, listener=listener)


def rest_seconds(worked: float, passed: float) -> float:
    """Return how long a purge rests after it ``worked`` on a batch. ``passed`` is the time since its pass began."""
    return min((REST if passed < LONG_SECONDS else REST_OF_A_LONG_PASS) * worked, REST_SECONDS_MAX)


class PurgeService(Service):
    """The purge of one process. Another process goes on with what it leaves."""

    def __init__(self, engine: Engine, rules: Rules | None = None) -> None:
        super().__init__("purge", self._purge_until_stopped)
        self._engine = engine
        self._rules = rules

    def _purge_until_stopped(self) -> None:
        retried(logger, self._purge, self, (StoreError,))

    def _purge(self) -> None:
        with closing(self._engine.access()) as access:
            while True:
                if count_hour(access, self._engine.clock):
                    self._engine.databases.renumber()
                    self._run_pass(access)
                if not self.wait(TURN_SECONDS):
                    return

    def _run_pass(self, access: Access) -> None:
        removed: Counter[str] = Counter()
        monotonic = self._engine.clock.monotonic
        first = began = monotonic()
        try:
            for each in purge_all(access, self._engine.store, rules=self._rules):
                removed[each.what] += each.rows
                now = monotonic()
                if not self.wait(rest_seconds(now - began, now - first)):
                    break
                began = monotonic()
        except StoreError as error:
            access.rollback()
            logger.warning("purge broken off, next hour continues: %s", error, extra={"event": "broken-off"})
        for what, rows in removed.items():
            if rows:
                logger.info("purged %d %s", rows, what, extra={"event": "purged"})
