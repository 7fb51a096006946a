"""The stage's transaction as its handler sees it. It begins late: at the handler's first touch of the database.

So a handler that calls out first, and writes last, holds the database only while it writes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import IdConflict, IllegalCall, LeaseLost, StagepostError, StoreError, TransactionEnded
from stagepost.flow.inbox import AlreadyHandled, Handled
from stagepost.flow.initiation import Acceptance, Initiation, Verdict
from stagepost.flow.rows import Rows
from stagepost.transaction.demarcation import Demarcation
from stagepost.transaction.forks import forks
from stagepost.transaction.outcome import Completed
from stagepost.transaction.seams import Watch
from stagepost.transaction.steps import Step, StepListener

# Commits flows by itself.
Write = Callable[[Sequence[Acceptance]], Sequence[Verdict]]
# Scope and key of what was started in a transaction that is open still.
Joined = set[tuple[str, str]]

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
        demarcation: Demarcation,
        watch: Watch,
        listener: StepListener,
        clock: Clock,
        node: str,
        write_apart: Write | None,
        joined: Joined,
    ) -> None:
        self._claim = claim
        self._demarcation = demarcation
        self._session = demarcation.session
        self._watch = watch
        self._listener = listener
        self._clock = clock
        self._node = node
        self._write_apart = write_apart
        self._joined = joined
        self._forks = forks.count
        self._thread = threading.get_ident()
        self._is_begun = False
        self.is_handlers = False
        self.interruption: StagepostError | None = None

    def begin(self) -> None:
        """Open the transaction and let the message in, once."""
        if self._is_begun:
            return
        with self._watch.waiting():
            self._demarcation.begin(self._claim)
            self._is_begun = True
        self._listener(Step.BEGUN, self._claim)
        self._listener(Step.ADMITTED, self._claim)

    def check_caller(self, call: str) -> None:
        if forks.count != self._forks:
            raise IllegalCall(
                f"a process forked by the handler of {self._claim.stage} used {call}, which is its parent's. "
                "Fork no process in a handler, or give it work that needs neither ctx nor the app; start flows from "
                "what it returns."
            )
        if threading.get_ident() != self._thread:
            raise IllegalCall(
                f"{call} of {self._claim.stage} was used in another thread than its handler's: a run, its ids and its "
                "transaction belong to one. Collect in the thread; write and send in the handler."
            )

    def touch(self) -> None:
        """Before each statement of the handler: begin, or make sure that the transaction begun is still open."""
        self.check_caller("its transaction")
        if self.interruption is not None:
            raise self.interruption
        if self._is_begun:
            self._check_open()
            return
        try:
            self.begin()
        except (StoreError, LeaseLost, AlreadyHandled, IdConflict) as error:
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

    def initiate(self, *, independent: bool) -> Initiation:
        if independent and self._write_apart is None:
            raise IllegalCall(
                f"initiate(independent=True) in {self._claim.stage}: it needs a connection of its own beside the "
                "stage's, and a store that lets one write at a time has none. Use PostgreSQL, or start the flow in a "
                "stage of its own."
            )
        return Initiation(self._node, self._clock, self._write_independently if independent else self._write)

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

    def complete(self, completed: Completed) -> None:
        self._demarcation.complete(self._claim, completed, self.begin)

    def conclude(self, handled: Handled) -> None:
        self._demarcation.conclude(self._claim, handled)

    def rollback(self) -> None:
        self._demarcation.rollback()

    def _check_open(self) -> None:
        if not self._session.is_open:
            self.interruption = self._session.interruption or self._ended()
            raise self.interruption

    def _ended(self) -> TransactionEnded:
        ended = TransactionEnded(
            f"the transaction of {self._claim.stage} ended under its handler: {self._session.ended_by}"
        )
        ended.__cause__ = self._session.broken_by
        return ended

    def _write_independently(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """On a connection that is not the stages': with one of theirs, as many stages as there are would wait for each
        other."""
        assert self._write_apart is not None
        for each in acceptances:
            if (each.scope, each.key) in self._joined:
                raise IllegalCall(
                    f"{each.scope} is started twice in one run of {self._claim.stage}, with the stage and "
                    f"independently of it, under one id ({each.key}): the second would wait for the first. Use another "
                    "flow_id."
                )
        return self._write_apart(acceptances)

    def _write(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        self.touch()
        self._joined.update((each.scope, each.key) for each in acceptances)
        try:
            with self._session.atomic():
                return self._demarcation.accept(acceptances)
        except (StoreError, LeaseLost) as error:
            self.interruption = error
            raise
