"""The callers' sessions, ``session=…`` of a start: an integration finds the driver's connection behind each."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from stagepost.flow.errors import IllegalCall

# The integration for each package whose classes a session is made of.
INTEGRATIONS = {
    "sqlalchemy": "stagepost.integrations.sqlalchemy",
    "django": "stagepost.integrations.django",
}


class CallersSession(Protocol):
    """A session with a transaction of its caller's, in which flows are started."""

    def driver_connection(self) -> object:
        """Return the driver's connection, which the session's next commit commits. Raises the session's errors."""

    def follow(self) -> None:
        """Follow the transaction in which flows were started, for ``is_open``."""

    @property
    def is_open(self) -> bool:
        """Say whether the transaction that is followed has not ended yet."""


class DriverConnection:
    """A driver's own connection. Implements ``CallersSession``, and cannot say whether its transaction ended."""

    is_open = False

    def __init__(self, connection: object) -> None:
        self._connection = connection

    def driver_connection(self) -> object:
        return self._connection

    def follow(self) -> None:
        """Nothing, because a driver does not tell the end of its transaction."""


def callers_session(connection: object, session: object) -> CallersSession:
    """Return the session of a start that is given a connection or a session. Raises ``IllegalCall``."""
    if session is None:
        return DriverConnection(connection)
    if connection is not None:
        raise IllegalCall("connection= and session= were both given: give the one whose transaction the flow joins.")
    for each in type(session).__mro__:
        integration = INTEGRATIONS.get(each.__module__.partition(".")[0])
        if integration is not None:
            joined: CallersSession = import_module(integration).join(session)
            return joined
    raise IllegalCall(
        f"session= takes a SQLAlchemy Session or Connection, or a connection of Django, not a "
        f"{type(session).__qualname__}. A connection of a driver is given as app.initiate(connection=…)."
    )
