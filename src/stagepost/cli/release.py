"""``stagepost release``: give an address of a broker back that a store no longer receives from."""

from __future__ import annotations

import json
from contextlib import closing
from random import Random

import click

from stagepost.cli.exits import BAD_NEWS, CANNOT, fail, print_error, readable_errors
from stagepost.cli.options import json_option
from stagepost.cli.show import echo
from stagepost.flow.clock import SystemClock
from stagepost.flow.urls import shown_url
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.runtime.edge import CONNECT_SECONDS
from stagepost.runtime.settings import read_settings


@click.command()
@click.argument("address")
@click.option("--store", required=True, help="The uuid of the store that is gone. The refusal of the address names it.")
@click.option("--broker", help="The URL of the broker. Default: STAGEPOST_BROKER, then stagepost.toml.")
@json_option
def release(address: str, store: str, broker: str | None, as_json: bool) -> None:
    """Release ADDRESS at the broker from a store that is gone, so that another store can receive from it.

    First stop every process of that store. A redelivery of a message that it has stored would be handled a second time,
    because the other store does not know it. Messages that wait at the address stay there.
    """
    with readable_errors():
        url = read_settings(broker=broker).broker
        if url is None:
            print_error("declaration", "no broker is named. Use --broker, STAGEPOST_BROKER or stagepost.toml.")
            raise click.exceptions.Exit(CANNOT)
        found = broker_driver_of(url).broker(url, SystemClock(), Random())  # noqa: S311 - jitter, no secret
        with closing(found.connect(CONNECT_SECONDS)) as connection:
            is_released = connection.release(address, store)
    if as_json:
        echo(json.dumps({"broker": shown_url(url), "address": address, "store": store, "released": is_released}))
        if not is_released:
            raise click.exceptions.Exit(BAD_NEWS)
    elif is_released:
        echo(f"{address} at {shown_url(url)} is free: the next store that starts there receives from it")
    else:
        fail(f"the store {store} has no mark at {address} of {shown_url(url)}; nothing was changed")
