"""One handler run's right to use the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import psycopg

from stagepost.flow.errors import TransactionBoundary
from stagepost.store.postgres.boundary import analyse
from stagepost.store.postgres.faults import IN_FAILED_TRANSACTION, READ_ONLY_TRANSACTION, is_elsewhere, is_outage

if TYPE_CHECKING:
    from stagepost.store.postgres.connection import GuardedConnection


class ConnectionLoan:
    """The permission of one handler run, and the facts that its statements leave for the end of the run.

    ``touch``     makes sure that the transaction is open
    ``catch_up``  executes the statements that wait, before the handler's next one
    """

    def __init__(
        self, place: str, touch: Callable[[], None], catch_up: Callable[[], None], connection: GuardedConnection
    ) -> None:
        self.place = place
        self.touch = touch
        self.catch_up = catch_up
        self._connection = connection
        self.is_over = False
        self.has_run_statement = False
        self.has_set_something = False
        self.has_run_block = False
        self.has_run_code = False
        self.outage: psycopg.Error | None = None
        self.broken_by: psycopg.Error | None = None

    def note_error(self, error: psycopg.Error) -> None:
        """Note the error of a handler's statement. The handler may catch it, or raise another one."""
        is_answer = error.sqlstate is not None and not is_elsewhere(error)
        # Stagepost's first statement has written, so only the handler can have made the transaction read-only.
        is_its_own = error.sqlstate == READ_ONLY_TRANSACTION
        if is_outage(error) and not is_its_own and (is_answer or self._connection.broken):
            self.outage = error
        if error.sqlstate != IN_FAILED_TRANSACTION:
            self.broken_by = error

    def check(self, statement: str) -> None:
        """Check a statement of the handler before it runs, and open the transaction. Raises ``TransactionBoundary``."""
        self.check_still_there()
        facts = analyse(statement)
        if facts.forbidden is not None:
            self.refuse(facts.forbidden)
        if not facts.returns_to_savepoint:
            self._connection.check_not_failed()
            # The transaction has not failed, so a savepoint has undone the earlier error.
            self.broken_by = None
        self.touch()
        self.has_run_statement = True
        self.has_set_something = self.has_set_something or facts.sets_something
        self.has_run_block = self.has_run_block or facts.is_block
        self.has_run_code = self.has_run_code or facts.runs_code

    def check_still_there(self) -> None:
        if self.is_over:
            raise TransactionBoundary(
                f"a connection or cursor of {self.place} was used after its handler had returned: its transaction is "
                "over. Take ctx.connection again in each run."
            )

    def refuse(self, what: str) -> NoReturn:
        raise TransactionBoundary(
            f"{what} was refused in {self.place}: the handler's statements, its message and the messages that it sends "
            "commit together when the handler returns, or roll back when it raises. To roll back and set the message "
            "aside, call ctx.refuse(reason). To undo a part, use `with ctx.connection.transaction()`, which is a "
            "savepoint there."
        )
