"""``make soak BROKER=rabbitmq MINUTES=60``: a long campaign of faults over one broker, its rates and a verdict."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.activemq import running_activemq
from tests.servers.plugin import in_memory
from tests.servers.postgres import running_alone
from tests.servers.rabbitmq import running_rabbitmq
from tests.soak.brokers.books import Books, store_at
from tests.soak.brokers.campaign import Plan, Soak
from tests.soak.brokers.injector import Rates
from tests.soak.brokers.targets import ActiveMQTarget, BrokerTarget, RabbitTarget

# More than an hour's goal of 20,000 faults, 2,000 SIGKILLs of ours and 60 of the broker.
RATES = Rates(
    step_kills=0.45,
    kills=0.3,
    supervisor_kills=0.02,
    suspensions=0.03,
    spoilings=0.5,
    broker_kills=0.08,
    broker_stalls=0.01,
)
COPIED, RAISES = 0.05, 0.03


@contextmanager
def target_of(name: str, folder: Path) -> Iterator[BrokerTarget]:
    target: BrokerTarget
    if name == "rabbitmq":
        with running_rabbitmq(folder / name) as rabbit:
            target = RabbitTarget(rabbit)
            yield target
            target.close()
    else:
        with running_activemq(folder / name) as activemq:
            target = ActiveMQTarget(activemq, folder)
            yield target
            target.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("broker", choices=["rabbitmq", "activemq"])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    # A disk that forces each write slows the campaign down, and a SIGKILL takes no written byte away.
    with TemporaryDirectory(prefix="stagepost-soak-", dir=in_memory()) as name:
        folder = Path(name)
        # PostgreSQL does not run as root, and must be able to pass.
        folder.chmod(0o755)
        with running_alone(folder / "postgres") as server, target_of(given.broker, folder) as target:
            books = Books(
                store_at("payments", server.new_database()), store_at("ledger", (folder / "ledger.db").absolute())
            )
            logs = folder / "logs"
            logs.mkdir()
            plan = Plan(seconds=60 * given.minutes, rates=RATES, copied=COPIED, raises=RAISES, seed=given.seed)
            report = Soak(plan, target, books, logs).run(lambda line: print(line, flush=True))
    print("\n".join(report.lines()), flush=True)
    if not report.is_clean:
        for each, log in report.logs.items():
            print(f"--- {each}\n{log[-4000:]}")
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
