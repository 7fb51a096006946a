"""A queue of the memory broker, and its messages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from stagepost.ports.broker import Publication

# The broker refuses a larger body.
BODY_BYTES_MAX = 4_000_000


@dataclass(slots=True)
class Stored:
    """A message in a queue. ``place`` orders the messages of the broker."""

    place: int
    publication: Publication
    was_delivered: bool = False


@dataclass(slots=True)
class MemoryQueue:
    messages: deque[Stored] = field(default_factory=deque)
    # A queue that Stagepost did not declare has other arguments.
    is_ours: bool = True
