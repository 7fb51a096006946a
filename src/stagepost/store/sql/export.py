"""Rows of whole tables, as Spark is given them."""

from __future__ import annotations

from stagepost.store.sql.database import Row

# The tables that are read with envelopes, which come last.
WITH_ENVELOPES = {"queue", "dead_letters"}


def readable(row: Row) -> Row:
    """Decode the envelope, which comes last: a dead letter keeps its bytes as they came, and these need not be text."""
    *others, envelope = row
    return *others, envelope.decode(errors="replace")
