"""``make soak``, or ``make soak ORDERS=path`` with a file of real orders; ``ARGS="--kills 50 --seed 7"``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.payments.database import Database
from examples.payments.orders import write_good_orders
from tests.servers import postgres
from tests.soak import histories, killed_workers, slow_handlers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=Path, help="a file in the format of the real one; default: one is written")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--histories", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="stagepost-soak-") as name:
        folder = Path(name)
        # The server does not run as root, and must be able to pass.
        folder.chmod(0o755)
        orders = given.orders or folder / "orders.csv"
        if given.orders is None:
            write_good_orders(orders, given.seed)
        if given.store == "postgres":
            with postgres.running(folder / "server") as server:
                database = Database(server.new_database())
                campaign = killed_workers.run(orders, folder, database, kills=given.kills, seed=given.seed)
            print(campaign, flush=True)
            return 0 if campaign.is_clean else 1
        database = Database(f"sqlite:///{(folder / 'soak.db').absolute()}")
        campaigns = [killed_workers.run(orders, folder, database, kills=given.kills, seed=given.seed)]
        print(campaigns[-1], flush=True)
        campaigns.append(slow_handlers.run(folder, kills=given.kills, seed=given.seed))
        print(campaigns[-1], flush=True)
        campaigns.append(histories.run(histories=given.histories, seed=given.seed * 1_000_000))
        print(campaigns[-1], flush=True)
    return 0 if all(campaign.is_clean for campaign in campaigns) else 1


if __name__ == "__main__":
    sys.exit(main())
