"""Which of the fault tests run on which store, and in which mode.

SQLite is the one that all of them were written for. What the stage transaction and the workers promise on any store is
tried on PostgreSQL too with ``make test-more``, and with the messages in another database with ``make soak``.
"""

from __future__ import annotations

import pytest

on_both = pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
on_both_and_longer = pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
in_every_mode = pytest.mark.parametrize(
    "store",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.more),
        *(
            pytest.param(store, marks=pytest.mark.soak)
            for store in ("postgres-outbox", "postgres-two_phase", "sqlite-outbox")
        ),
    ],
)
in_every_mode_and_longer = pytest.mark.parametrize(
    "store",
    [
        "sqlite",
        pytest.param("sqlite-outbox", marks=pytest.mark.soak),
        pytest.param("postgres", marks=pytest.mark.soak),
        pytest.param("postgres-outbox", marks=pytest.mark.soak),
        pytest.param("postgres-two_phase", marks=pytest.mark.soak),
    ],
)
