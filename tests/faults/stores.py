"""Which of the fault tests run on which store.

SQLite is the one that all of them were written for. What the stage transaction and the workers promise on any store is
tried on PostgreSQL too: once where one cell stands for its neighbours, the others with ``make soak``.
"""

from __future__ import annotations

import pytest

# Each line that says so goes when it is so.
patient_supervisor = pytest.mark.xfail(run=False, reason="a supervisor ends when its survey meets an outage")
remembered_claims = pytest.mark.xfail(run=False, reason="a claim is forgotten when nobody can be asked if it stood")

on_both = pytest.mark.parametrize("store", ["sqlite", "postgres"])
on_both_and_longer = pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
