"""Print the demo's last table: every claim, its figures, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from examples.payments.books import Books, Confirmations

# The requests of the consumer's log that did not end well at once.
ANSWERS = {"error": "errors", "half": "halves", "late": "too late", "copy": "copies known"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one run. ``confirmations`` is None if no consumer outside took the receipts."""

    initiated: dict[str, Any]
    audit: dict[str, Any]
    books: Books
    confirmations: Confirmations | None


@dataclass(frozen=True, slots=True)
class Claim:
    what: str
    found: str
    holds: bool


def show(out: Console, claims: Sequence[Claim], work: Sequence[dict[str, Any]], killed: int | None) -> bool:
    """Print the claims, and the processes that did the work. Return whether all claims hold."""
    table = Table(Column("claim"), Column("found"), Column("", justify="right"), box=None, padding=(0, 2, 0, 0))
    for claim in claims:
        table.add_row(claim.what, claim.found, "[green]holds[/]" if claim.holds else "[bold red]BROKEN[/]")
    out.print(table)
    shown = Table(
        Column("process"), Column("committed messages", justify="right"), Column(""), box=None, padding=(0, 2, 0, 0)
    )
    for row in work:
        note = "killed with SIGKILL" if row["node"].endswith(f":{killed}") else ""
        shown.add_row(row["node"], str(row["committed"]), f"[red]{note}[/]")
    out.print()
    out.print(shown)
    is_right = all(claim.holds for claim in claims)
    verdict = "[bold green]every order exactly once, or set aside with its reason[/]"
    out.print(f"\n{verdict if is_right else '[bold red]something is wrong: see above[/]'}")
    return is_right


def claims_of(outcome: Outcome) -> Iterator[Claim]:
    initiated, audit, books = outcome.initiated, outcome.audit, outcome.books
    dead = sum(books.dead.values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in books.dead.items())
    yield Claim(
        "rows in = started + repeated + quarantined",
        f"{initiated['rows_in']} = {initiated['started']} + {initiated['repeated']} + {initiated['quarantined']}",
        initiated["balanced"],
    )
    yield Claim(
        "started = executed exactly once + dead letters",
        f"{books.started} = {books.executed} + {dead}{f' ({reasons})' if reasons else ''}",
        books.executed + dead == books.started,
    )
    yield Claim(
        "money to move = settled + held + refused",
        f"{money(books.started_sum)} = "
        f"{money(books.settled_sum)} + {money(books.held_sum)} + {money(books.refused_sum)}",
        books.started_sum == books.settled_sum + books.held_sum + books.refused_sum,
    )
    yield Claim("the ledger adds up to nothing", money(books.imbalance), books.imbalance == 0)
    yield Claim(
        "lost",
        f"{audit['lost_count']} by the audit, {books.missing} by the ledger",
        audit["lost_count"] == 0 and books.missing == 0,
    )
    yield Claim(
        "doubled",
        f"{audit['doubled_count']} by the audit, {books.doubled} by the ledger",
        audit["doubled_count"] == 0 and books.doubled == 0,
    )
    if (given := outcome.confirmations) is not None:
        met = ", ".join(f"{given.answers.get(each, 0)} {words}" for each, words in ANSWERS.items())
        yield Claim(
            "executed = receipts taken by the consumer",
            f"{books.executed} = {given.taken}, doubled {given.doubled} ({met})",
            given.taken == books.executed and given.doubled == 0,
        )
    flows = audit["flows"]
    yield Claim(
        "flows by the audit: completed + dead",
        f"{flows['flows']} = {flows['completed']} + {flows['dead']}",
        (flows["flows"], flows["completed"], flows["dead"]) == (books.started, books.executed, dead),
    )


def money(hundredths: int) -> str:
    whole, rest = divmod(abs(hundredths), 100)
    return f"{'-' if hundredths < 0 else ''}{whole:,}.{rest:02d}"
