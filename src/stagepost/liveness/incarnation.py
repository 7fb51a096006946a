"""Name incarnations, and the addresses at which they receive replies.

A process that makes a request outside any stage receives the reply at an address of its own incarnation. No other
process claims messages there.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence

from stagepost.flow.clock import Clock
from stagepost.flow.ids import IdSource
from stagepost.ports.liveness import Registration

# The role of a process that only makes requests: it runs no stages and has no claims to take over.
ROLE = "edge"

_ADDRESS = re.compile(r"(.+)\.reply\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")

# The owners in this process that listen for replies. A process must not read its own records, so it skips them.
listening: set[str] = set()


def registration(
    app_name: str, node: str, ids: IdSource, clock: Clock, *, slots: int = 1, batched: Sequence[str] = ()
) -> Registration:
    """Describe a new incarnation of this process."""
    owner = f"{app_name}/{ids.mint()}"
    return Registration(app_name, owner, node, socket.gethostname(), os.getpid(), slots, clock.now(), batched)


def reply_address(owner: str) -> str:
    app, _, identity = owner.rpartition("/")
    return f"{app}.reply.{identity}"


def owner_at(address: str) -> str | None:
    """Return the owner of a reply address, or None for a stage's address."""
    found = _ADDRESS.fullmatch(address)
    return f"{found[1]}/{found[2]}" if found else None


def is_edge(node: str) -> bool:
    return node.startswith(f"{ROLE}@")
