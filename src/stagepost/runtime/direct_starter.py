"""Start flows from outside any stage under ``best_effort``, over a connection to the broker of the app's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import cast

from stagepost.flow.clock import Clock
from stagepost.flow.errors import (
    BrokerError,
    BrokerRefused,
    BrokerUnavailable,
    CommittedButMaybeNotSent,
    CommitUnknown,
    NothingSent,
    StoreError,
)
from stagepost.flow.ids import node_name
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.texts import as_sentence
from stagepost.ports.broker import AtomicConnection, Broker, BrokerConnection, PublishResult
from stagepost.ports.session import Session
from stagepost.runtime.pool import Pool
from stagepost.transaction.direct import have_left
from stagepost.transaction.direct_start import DirectSend, accept_directly, note_confirmed
from stagepost.transaction.dispatcher import CONFIRM_SECONDS
from stagepost.transaction.enqueueing import Routing
from stagepost.transaction.queue_commit import committing

ROLE = "app"
CONNECT_SECONDS = 10.0
ALIVE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class DirectStarter:
    """Commits ids to the store, then sends their messages over the broker. Any thread may use it, one at a time.

    ``broker``   returns the app's broker
    ``pool``     the sessions for the commits; none is held while the broker is waited for
    ``routing``  sends every message over the broker
    """

    def __init__(
        self, broker: Callable[[], Broker], pool: Pool[Session], clock: Clock, routing: Callable[[], Routing]
    ) -> None:
        self._broker = broker
        self._pool = pool
        self._clock = clock
        self._routing = routing
        self._connection: BrokerConnection | None = None
        self._lock = threading.Lock()

    def write(self, acceptances: Sequence[Acceptance], check: Callable[[], None]) -> Sequence[Verdict]:
        """Start flows. ``check`` raises ``StoreError`` where the store takes no writes.

        Raises ``IdConflict`` and ``StoreError``. Raises ``NothingSent`` if the broker is away before the commit,
        and ``CommittedButMaybeNotSent`` if it did not confirm each message after the commit.
        """
        node = node_name(ROLE)
        with self._lock:
            connection = self._connected(acceptances)
            with self._pool.taken() as session:
                session.begin()
                check()
                verdicts, sends = accept_directly(
                    session, acceptances, connection, self._clock.now(), node, self._routing()
                )
                session.commit()
            if sends:
                self._send(connection, sends, node)
        return verdicts

    def close(self) -> None:
        """Close the connection. It opens again when needed."""
        with self._lock:
            self._drop()

    def _connected(self, acceptances: Sequence[Acceptance]) -> BrokerConnection:
        try:
            if self._connection is None or not self._connection.is_alive(ALIVE_SECONDS):
                self._drop()
                self._connection = self._broker().connect(CONNECT_SECONDS)
        except BrokerError as error:
            raise NothingSent(f"nothing was started: {error}", [each.key for each in acceptances]) from error
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, connection: BrokerConnection, sends: Sequence[DirectSend], node: str) -> None:
        results, reason = self._results(connection, sends)
        have = [each for each, result in zip(sends, results, strict=True) if have_left([each.publication], [result])]
        self._note(have, node)
        missing = sorted({each.acceptance.key for each in sends if each not in have})
        if missing:
            # A late answer would be taken for the next window's.
            self._drop()
            raise CommittedButMaybeNotSent(
                f"the database has committed, and the broker did not confirm {len(missing)} of {len(sends)} messages: "
                f"{as_sentence(reason)} "
                "They may have been sent. Take back what was committed for them, or start them again with "
                "the same ids.",
                missing,
            )

    def _results(
        self, connection: BrokerConnection, sends: Sequence[DirectSend]
    ) -> tuple[Sequence[PublishResult], str]:
        publications = [each.publication for each in sends]
        try:
            if connection.features.is_atomic:
                cast("AtomicConnection", connection).transact([], publications, CONFIRM_SECONDS)
                return ["confirmed"] * len(sends), ""
            results = connection.publish(publications, CONFIRM_SECONDS)
        except BrokerRefused as error:
            return ["refused"] * len(sends), str(error)
        except BrokerUnavailable as error:
            return ["lost"] * len(sends), str(error)
        return results, ", ".join(sorted(set(results) - {"confirmed"}))

    def _note(self, sends: Sequence[DirectSend], node: str) -> None:
        if not sends:
            return
        try:
            with self._pool.taken() as session, committing(session, is_durable=False):
                note_confirmed(session, sends, self._clock.now(), node)
        except (StoreError, CommitUnknown) as error:
            logger.warning(
                "%d messages are sent, but the store cannot note it yet: %s",
                len(sends),
                error,
                extra={"event": "not-marked"},
            )
