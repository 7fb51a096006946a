"""``stagepost purge``: remove the rows whose retention is over, without waiting for the housekeeper."""

from __future__ import annotations

import json
from collections import Counter

import click
from rich.filesize import decimal
from rich.table import Column, Table

from stagepost.cli.exits import fail, readable_errors
from stagepost.cli.options import database_option, existing_store, json_option
from stagepost.cli.show import console, echo
from stagepost.flow.clock import SystemClock
from stagepost.runtime.access import Access
from stagepost.runtime.purge_service import count_hour, purge_all
from stagepost.transaction.queue_commit import committing


@click.command()
@click.option(
    "--dry-run", is_flag=True, help="Count the rows that would go and the bytes that they take, and remove none."
)
@click.option(
    "--forget-broker",
    metavar="URL",
    help="Forget a broker that does not come back. It holds ids of its messages no longer.",
)
@database_option
@json_option
def purge(dry_run: bool, forget_broker: str | None, database: str | None, as_json: bool) -> None:
    """Remove old ids, as the housekeeper of each worker does once an hour. It may run beside workers."""
    removed: Counter[str] = Counter()
    saves: Counter[str] = Counter()
    pinned: Counter[str] = Counter()
    with readable_errors(), existing_store(database) as (store, access):
        if forget_broker is not None:
            _forget(access, forget_broker)
        if not dry_run:
            count_hour(access, SystemClock())
        for each in purge_all(access, store, dry_run=dry_run):
            removed[each.what] += each.rows
            pinned[each.what] += each.pinned
            saves[each.what] += each.saves
    if as_json:
        rows = {what: {"removed": removed[what], "pinned": pinned[what]} for what in removed}
        if dry_run:
            for what, counts in rows.items():
                counts["saves_bytes"] = saves[what]
        echo(json.dumps({"database": store.url, "dry_run": dry_run, "rows": rows}))
        return
    if not removed:
        echo(f"{store.url}: nothing is old enough to go")
        return
    verb = "would go" if dry_run else "removed"
    table = Table("rows", Column(verb, justify="right"), Column("pinned", justify="right"), box=None)
    if dry_run:
        table.add_column("saves about", justify="right")
    for what in removed:
        saving = [decimal(saves[what])] if dry_run else []
        table.add_row(what, str(removed[what]), str(pinned[what]), *saving)
    console().print(table)
    if dry_run:
        echo(f"it would save about {decimal(saves.total())}")


def _forget(access: Access, broker: str) -> None:
    """Forget a broker, or end the command if the store has none of that URL."""
    retention = access.session.retention
    known = sorted({each.broker for each in retention.brokers()})
    if broker not in known:
        fail(f"the store receives from no broker {broker}; it knows: {', '.join(known) or 'none'}")
    with committing(access.session):
        retention.forget_broker(broker)
