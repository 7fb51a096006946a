"""Fixtures: a server for each process of the test run, and an empty database for each test that asks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from stagepost.store.postgres.store import migrate_database
from stagepost.testing.postgres import ServerUnavailableError, account_for_the_server
from tests.servers.activemq import ActiveMQServer, running_activemq
from tests.servers.pooler import Pooler, PoolMode, pooled
from tests.servers.postgres import VARIABLE, OwnServer, Server, ensure_installed, running, running_alone
from tests.servers.rabbitmq import RabbitServer, running_rabbitmq
from tests.servers.redis import RedisServer, running_redis

S = TypeVar("S", bound=Server)
B = TypeVar("B")

# For several servers at once, with the databases of the tests that run.
MEMORY_MIN = 4 * 2**30

# What is not forced to the disk is lost with the server, as it is with a machine's power: the claims, for one.
FORGETFUL = {"wal_writer_delay": "10s", "full_page_writes": "off", "autovacuum": "off"}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    with had(running) as server:
        yield server


@pytest.fixture(scope="session")
def mortal_postgres() -> Iterator[OwnServer]:
    """A server for those who kill it. They leave it running."""
    if os.environ.get(VARIABLE):
        pytest.skip(f"a server that others use is not killed: unset {VARIABLE}")
    with had(lambda folder: running_alone(folder, FORGETFUL)) as server:
        yield server


@pytest.fixture(scope="session")
def default_postgres() -> Iterator[OwnServer]:
    """A server with the settings that PostgreSQL comes with."""
    if os.environ.get(VARIABLE):
        pytest.skip(f"a server of one's own is wanted: unset {VARIABLE}")
    with had(lambda folder: running_alone(folder, {"fsync": "on", "max_prepared_transactions": "0"})) as server:
        yield server


@pytest.fixture(scope="session")
def activemq() -> Iterator[ActiveMQServer]:
    """A broker that tests may kill. They leave it running."""
    with had_broker("activemq", running_activemq) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitServer]:
    """A server that tests may kill. They leave it running."""
    with had_broker("rabbitmq", running_rabbitmq) as server:
        yield server


Pooled = Callable[..., Pooler]


@pytest.fixture
def pooled_by(postgres_server: Server) -> Iterator[Pooled]:
    """A pooler before the server, of the mode that is asked for."""
    if os.environ.get(VARIABLE):
        pytest.skip(f"a pooler is put before a server of one's own: unset {VARIABLE}")
    with ExitStack() as poolers:
        folder = Path(poolers.enter_context(tempfile.TemporaryDirectory(prefix="stagepost-pooler-")))
        folder.chmod(0o755)

        def make(mode: PoolMode, *, server: str = postgres_server.url, **settings: str) -> Pooler:
            try:
                return poolers.enter_context(pooled(server, mode, folder / mode, **settings))
            except ServerUnavailableError as reason:
                if os.environ.get("CI"):
                    raise
                pytest.skip(f"no PgBouncer: {reason}")

        yield make


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with had_broker("redis", running_redis) as server:
        yield server


@contextmanager
def had(run: Callable[[Path], AbstractContextManager[S]]) -> Iterator[S]:
    # Not in pytest's own folder, which only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="stagepost-postgres-", dir=in_memory()))
    try:
        if VARIABLE not in os.environ:
            # The account that the server needs comes with it.
            ensure_installed()
            if account_for_the_server() is not None:
                folder.chmod(0o755)
        with run(folder / "server") as server:
            yield server
    except ServerUnavailableError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL: {reason}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_memory() -> Path | None:
    """Return a file system in memory that has room for a server, if there is one.

    A new database is a copy of many small files, ten times faster there. The servers are not to outlive the machine.
    """
    folder = Path("/dev/shm")
    try:
        return folder if shutil.disk_usage(folder).free >= MEMORY_MIN and os.access(folder, os.W_OK) else None
    except OSError:
        return None


@contextmanager
def had_broker(product: str, run: Callable[[Path], AbstractContextManager[B]]) -> Iterator[B]:
    with tempfile.TemporaryDirectory(prefix=f"stagepost-{product}-") as folder:
        try:
            with run(Path(folder) / "server") as server:
                yield server
        except ServerUnavailableError as reason:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no {product}: {reason}")


@pytest.fixture(scope="session")
def migrated_template(postgres_server: Server) -> str:
    """The name of a database with Stagepost's tables, to be copied."""
    url = postgres_server.new_database()
    migrate_database(url)
    return url.rpartition("/")[2]


@pytest.fixture
def new_postgres(postgres_server: Server, migrated_template: str) -> Iterator[Callable[[], str]]:
    """The URL of an empty store, another one each time."""
    made: list[str] = []

    def make() -> str:
        url = postgres_server.new_database(migrated_template)
        # The uuid is made with the tables, and copied with them.
        made.append(url)
        return url

    yield make
    for url in made:
        postgres_server.drop_database(url)
