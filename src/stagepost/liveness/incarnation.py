"""Name incarnations, and the addresses at which they receive replies.

A process that makes a request outside any stage receives the reply at an address of its own incarnation. No other
process claims messages there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from stagepost.flow.clock import Clock
from stagepost.flow.ids import IdSource
from stagepost.flow.target import REPLY_ADDRESS
from stagepost.ports.liveness import Registration

# The role of a process that only makes requests: it runs no stages and has no claims to take over.
ROLE = "edge"

# The owners in this process that listen for replies. A process must not read its own records, so it skips them.
listening: set[str] = set()


def registration(
    app_name: str, node: str, ids: IdSource, clock: Clock, *, slots: int = 1, batched: Sequence[str] = ()
) -> Registration:
    """Describe a new incarnation of this process."""
    owner = f"{app_name}/{ids.mint()}"
    return Registration(app_name, owner, node, socket.gethostname(), os.getpid(), slots, clock.now(), batched)


def reply_address(owner: str, store: str | None = None) -> str:
    """Return the address of replies to an owner. With a broker, ``store`` is the uuid of its store."""
    app, _, identity = owner.rpartition("/")
    return f"{app}.reply.{identity}" if store is None else f"{app}.reply.{identity}@{store}"


def owner_at(address: str) -> str | None:
    """Return the owner of a reply address, or None for a stage's address."""
    found = REPLY_ADDRESS.fullmatch(address)
    return f"{found['app']}/{found['process']}" if found else None


def is_edge(node: str) -> bool:
    return node.startswith(f"{ROLE}@")
