"""Message ids: the same cause always gives the same id.

All ids are 36-character UUIDs. There are three kinds:

* *minted* (version 7): time and a random number, for a store, a worker incarnation or a run, which have no cause.
* *from a key* (version 5): a hash of the caller's flow id, the target and the ordinal within the initiation, for a
  message from outside. ``pipeline`` computes the same ids in Spark's SQL.
* *derived*: a hash of the incoming message and of the place of the send in the handler's run, for a message that a
  stage sends. A repeated attempt therefore sends the same ids, and a scatter of ten requests has ten. If the id of the
  cause has a time prefix (version 7 or 8), the derived id is a version 8 with the same prefix. So keys stay near each
  other in an index. Otherwise it is a plain hash (version 5).
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import uuid
from random import Random
from typing import Protocol

from stagepost.flow.clock import Clock
from stagepost.flow.errors import InvalidId

NAMESPACE = uuid.UUID("8a1d0e52-6f0c-5b7e-9d57-5f2f3b0c4d11")
# Ids and addresses hold no control characters, so this separator keeps the joined name unambiguous.
SEPARATOR = "\x1f"
LENGTH_MAX = 200

_NAMESPACE_BYTES = NAMESPACE.bytes
_HEX_VARIANT = "89ab"
_WITH_TIME = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class IdSource(Protocol):
    def mint(self) -> str:
        """Return a new unique id."""


class RandomIds:
    """UUIDv7 (RFC 9562, section 5.7): 48 bits of milliseconds, then random bits. A seeded ``random`` repeats them."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random

    def mint(self) -> str:
        milliseconds = self._clock.now() // 1_000
        chance = self._random.getrandbits(74)
        value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (chance >> 62) << 64 | 0b10 << 62
        return str(uuid.UUID(int=value | chance & 0x3FFF_FFFF_FFFF_FFFF))


def from_key(flow_id: str, target: str, ordinal: int) -> str:
    return _uuid(f"{flow_id}{SEPARATOR}{target}{SEPARATOR}{ordinal}", 5, None)


def of_producer(route: str, producer: str, theirs: str) -> str:
    """Return the id of a message that a gateway accepted. ``theirs`` is the producer's own id for it."""
    return _uuid(SEPARATOR.join(("gateway", route, producer, theirs)), 5, None)


def derived(
    cause_id: str, stage: str, index: int, kind: str, target: str, ordinal: int, handler: str | None = None
) -> str:
    """Return the id of the ``ordinal``-th ``kind`` to ``target``, sent by ``stage`` for the ``index``-th message of
    ``cause_id``.

    ``handler`` is the name of a handler that was added to the stage's own, and None for its own.
    """
    name = SEPARATOR.join((cause_id, stage, str(index), kind, target, str(ordinal)))
    if handler is not None:
        # One part more than any other name has, so no id of the stage's own handler is the same.
        name = f"{name}{SEPARATOR}{handler}"
    if _WITH_TIME.fullmatch(cause_id):
        return _uuid(name, 8, cause_id[:13])
    return _uuid(name, 5, None)


def of_copy(publication_id: str, scope: str, subscriber: str) -> str:
    """Return the id of a subscriber's copy of a publication to a topic of that scope."""
    return derived(publication_id, scope, 0, "publish", subscriber, 0)


def _uuid(name: str, version: int, time_prefix: str | None) -> str:
    digest = hashlib.sha1(_NAMESPACE_BYTES + name.encode(), usedforsecurity=False).hexdigest()
    prefix = time_prefix or f"{digest[:8]}-{digest[8:12]}"
    variant = _HEX_VARIANT[int(digest[16], 16) & 3]
    return f"{prefix}-{version}{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


def check_id(name: str, value: str) -> str:
    """Check that an id can be stored, searched and joined. Raises ``InvalidId``, with ``name``."""
    if not isinstance(value, str):
        raise InvalidId(f"{name} must be a str, not {type(value).__name__}: {value!r}")
    if not value or value != value.strip():
        raise InvalidId(f"{name} must not be empty or begin or end with blanks: {value!r}")
    if len(value) > LENGTH_MAX:
        raise InvalidId(f"{name} is {len(value)} characters long, at most {LENGTH_MAX} are allowed: {value[:40]!r}…")
    if not value.isprintable():
        raise InvalidId(f"{name} must be printable, without control characters or line ends: {value!r}")
    return value


def node_name(role: str, process: int | None = None) -> str:
    """Name a process for journal and dead letters: ``role@host:process``, by default this process."""
    return f"{role}@{socket.gethostname()}:{process or os.getpid()}"
