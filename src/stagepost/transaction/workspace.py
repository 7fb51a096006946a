"""The stage's transaction as its handler sees it. It begins late: at the handler's first touch of the database.

So a handler that calls out first, and writes last, holds the database only while it writes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import IllegalCall, LeaseLost, StagepostError, StoreError, TransactionEnded
from stagepost.flow.initiation import Acceptance, Initiation, Verdict
from stagepost.flow.rows import Rows
from stagepost.transaction.forks import forks
from stagepost.transaction.initiating import write_acceptances
from stagepost.transaction.seams import Session, Transport, Watch
from stagepost.transaction.steps import Step, StepListener

# EX_SOFTWARE.
EXIT_FORKED = 70

logger = logging.getLogger(__name__)


class StageWorkspace:
    """
    ``is_handlers``   the handler opened the transaction, so a rollback undoes work of its own
    ``interruption``  why the transaction cannot go on, whatever the handler made of the exception it saw
    """

    def __init__(
        self,
        claim: Claim,
        session: Session,
        transport: Transport,
        watch: Watch,
        listener: StepListener,
        clock: Clock,
        node: str,
    ) -> None:
        self._claim = claim
        self._session = session
        self._transport = transport
        self._watch = watch
        self._listener = listener
        self._clock = clock
        self._node = node
        self._forks = forks.count
        self._thread = threading.get_ident()
        self._is_begun = False
        self.is_handlers = False
        self.interruption: StagepostError | None = None

    def begin(self) -> None:
        """Open the transaction and take the message, once."""
        if self._is_begun:
            return
        with self._watch.waiting():
            self._session.begin()
            self._transport.take(self._claim)
            self._is_begun = True
        self._listener(Step.BEGUN, self._claim)
        self._listener(Step.ADMITTED, self._claim)

    def touch(self) -> None:
        """Before each statement of the handler: begin, or make sure that the transaction begun is still open."""
        if forks.count != self._forks:
            raise IllegalCall(
                f"a process forked by the handler of {self._claim.stage} used its transaction, which is its parent's. "
                "Fork no process in a handler, or give it work that needs neither ctx nor the app; start flows from "
                "what it returns."
            )
        if threading.get_ident() != self._thread:
            raise IllegalCall(
                f"ctx of {self._claim.stage} was used in another thread than its handler's: a transaction belongs to "
                "one. Collect in the thread, and write in the handler."
            )
        if self.interruption is not None:
            raise self.interruption
        if self._is_begun:
            self._check_open()
            return
        try:
            self.begin()
        except (StoreError, LeaseLost) as error:
            self.interruption = error
            raise
        self.is_handlers = True

    @property
    def connection(self) -> Any:
        """Asking for it begins the transaction: there are ways to use it that could not be seen."""
        self.touch()
        return self._session.connection

    def execute(self, statement: str, parameters: dict[str, Any]) -> Rows:
        return self._session.execute(statement, parameters)

    def initiate(self) -> Initiation:
        return Initiation(self._node, self._clock, self._write)

    def check(self) -> None:
        """Raise what stands between this run and its commit."""
        if self.interruption is not None:
            raise self.interruption
        if self._is_begun:
            self._check_open()

    @property
    def has_ended(self) -> bool:
        """Whether the transaction that was begun is open no more."""
        return self._is_begun and not self._session.is_open

    def end_forked_child(self) -> None:
        """A child that the handler forked, and that came back from it, would do all that follows a second time."""
        if forks.count != self._forks:
            logger.critical(
                "a process forked by the handler of %s returned from it, and is ended: leave with os._exit()",
                self._claim.stage,
                extra={"event": "forked-child"},
            )
            os._exit(EXIT_FORKED)

    def _check_open(self) -> None:
        if not self._session.is_open:
            self.interruption = self._session.interruption or TransactionEnded(
                f"the transaction of {self._claim.stage} ended under its handler: {self._session.ended_by}"
            )
            raise self.interruption

    def _write(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        self.touch()
        try:
            with self._session.atomic():
                return write_acceptances(self._session, self._transport, acceptances, self._clock.now(), self._node)
        except (StoreError, LeaseLost) as error:
            self.interruption = error
            raise
