"""Run the flow with each mistake, crash it at steps of its first stage, and count the damage."""

from __future__ import annotations

from dataclasses import dataclass

from examples.mistakes.app import Order, make_app, outside, prepare
from stagepost import App
from stagepost.testing import crash_everywhere, run, run_statement

SEEDS = 8


@dataclass(frozen=True)
class Damage:
    """The runs with each kind of damage.

    ``lost_mails``, ``doubled_mails``, ``doubled_invoices``  after the flow has ended
    ``kept_out``  another process could not write while the stage called the warehouse
    ``wrong_states``  the order is shipped, and its row says otherwise
    """

    runs: int
    lost_mails: int
    doubled_mails: int
    doubled_invoices: int
    kept_out: int
    wrong_states: int


def count(mistake: str) -> Damage:
    results = [each.result for each in crash_everywhere(make_app(mistake), start, effects, database="memory:")]
    for seed in range(SEEDS):
        with run(make_app(mistake), "memory:", seed=seed) as shop:
            start(shop.app)
            shop.drain()
            results.append(effects(shop.app))
    return Damage(
        runs=len(results),
        lost_mails=sum(mails == 0 for mails, *_ in results),
        doubled_mails=sum(mails > 1 for mails, *_ in results),
        doubled_invoices=sum(invoices > 1 for _, invoices, *_ in results),
        kept_out=sum(kept_out > 0 for _, _, kept_out, _ in results),
        wrong_states=sum(rank != 2 for *_, rank in results),
    )


def start(app: App) -> None:
    prepare(app)
    app.start(app.target("orders.place"), Order(7), flow_id="order:7")


def effects(app: App) -> tuple[int, int, int, int]:
    """Return the numbers of mails, of invoices and of calls that kept others out, and the rank of the state."""
    with outside(app) as other:
        sent, invoices, kept_out = other.execute(
            "SELECT (SELECT count(*) FROM mail), (SELECT count(*) FROM invoice), (SELECT count(*) FROM kept_out)"
        ).fetchone()
    mails = run_statement(app, "SELECT count(*) FROM mail").scalar() + sent
    return mails, invoices, kept_out, run_statement(app, "SELECT rank FROM state").scalar()
