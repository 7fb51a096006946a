"""Where replies to those go who ask from outside any stage: an address of one incarnation, which nobody else claims."""

from __future__ import annotations

import re

# Who asks is no worker: it lives, and has nothing that could be taken over.
ROLE = "edge"

_ADDRESS = re.compile(r"(.+)\.reply\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")

# The incarnations of this very process that listen: it may not look at its own proofs of life.
listening: set[str] = set()


def reply_address(owner: str) -> str:
    app, _, identity = owner.rpartition("/")
    return f"{app}.reply.{identity}"


def owner_at(address: str) -> str | None:
    """Whose it is; None for a stage's address."""
    found = _ADDRESS.fullmatch(address)
    return f"{found[1]}/{found[2]}" if found else None


def asks_only(node: str) -> bool:
    return node.startswith(f"{ROLE}@")
