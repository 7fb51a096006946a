"""The user's own session: an ORM's session or a library's connection, bound to a stage's transaction.

An integration implements both protocols. It sees the driver's connection that is lent to the handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from stagepost.flow.errors import IllegalCall

DEFAULT = "stagepost.integrations.sqlalchemy"


class UserSession(Protocol):
    """The session of one handling of an envelope. One thread uses it."""

    @property
    def handle(self) -> Any:
        """The object that ``ctx.session`` returns."""

    def flush(self) -> Sequence[Callable[[], object]]:
        """Write the pending changes. It is called after each handler.

        Returns the callbacks that the session was given for the time after the commit, each once.
        Raises the session's error, also an earlier one that its handler caught, because a part of the work is missing.
        """

    def end(self) -> None:
        """Refuse further use. The connection is taken back. Raises nothing."""


class UserSessions(Protocol):
    """Makes sessions. Any number of threads use it.

    ``is_ambient``  says that handlers find the session without ``ctx``, so that each handling gets one
    """

    @property
    def is_ambient(self) -> bool: ...

    def open(self, connection: Any, stage: str) -> UserSession:
        """Make a session on a stage's driver connection. No statement runs before its first use.

        Raises ``IllegalCall`` for a connection of another driver.
        """


class DefaultSessions:
    """The sessions of an app that names none: SQLAlchemy's, imported at the first use."""

    is_ambient = False

    def open(self, connection: Any, stage: str) -> UserSession:
        try:
            module = import_module(DEFAULT)
        except ImportError as error:
            raise IllegalCall(
                f"ctx.session of {stage} needs SQLAlchemy, which is not installed: pip install 'stagepost[sqlalchemy]'"
            ) from error
        opened: UserSession = module.SqlalchemySessions().open(connection, stage)
        return opened
