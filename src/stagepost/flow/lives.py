"""The register of who lives that a store may keep, for those of its clients that share no machine."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Registration(NamedTuple):
    """``slots`` is how many messages it runs at a time; at the ``batched`` stages, in each slot, several."""

    app: str
    owner: str
    node: str
    host: str
    process: int
    slots: int
    started_at: int
    batched: list[str]


class Life(NamedTuple):
    """
    ``beat``       moves while its process is not paused
    ``is_locked``  whether the connection that entered it is still there
    ``running``    row, deliveries and state of what it runs, or ran when it died
    """

    number: int
    owner: str
    node: str
    host: str
    process: int
    started_at: int
    beat: int
    is_locked: bool
    running: tuple[tuple[int, int, str], ...]


class Lives(Protocol):
    """One connection, whose end the store notices. Every call raises ``StoreError``, and connects where none is."""

    def enter(self, registration: Registration) -> int:
        """Returns the number under which it is found."""

    def enter_again(self, number: int, registration: Registration) -> bool:
        """After the connection was lost. False while the store has not noticed that yet."""

    def beat(self, number: int) -> None: ...

    def time_out(self, number: int, row: int, deliveries: int) -> None:
        """Say of a message that it runs that its time limit has passed."""

    def abandon(self, number: int) -> None:
        """Say of all others that it runs that it was told to stop and does not wait for them."""

    def leave(self, number: int) -> None:
        """Whoever entered is seen no more."""

    def forget(self, number: int) -> None:
        """Somebody else, who was taken for dead: not where he has come back, or still holds something."""

    def look(self, app: str) -> list[Life]:
        """Everybody who has entered and not left; ``*`` is for every app."""

    @property
    def is_connected(self) -> bool:
        """False once the connection was seen to be lost: others may take us for dead until it is entered again."""

    def close(self) -> None: ...
