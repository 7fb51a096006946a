"""Which of the fault tests run on which store.

SQLite is the one that all of them were written for. What the stage transaction and the workers promise on any store is
tried on PostgreSQL too: once where one cell stands for its neighbours, the others with ``make soak``.
"""

from __future__ import annotations

import pytest

on_both = pytest.mark.parametrize("store", ["sqlite", "postgres"])
on_both_and_longer = pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
