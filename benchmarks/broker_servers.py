"""The real brokers of the benchmarks, a worker process over one, and a bare connection to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psycopg

from benchmarks.broker_job import BATCH, PREFIX
from stagepost.flow.clock import SystemClock
from stagepost.ports.broker import Broker
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.testing.postgres import PostgresServer
from tests.servers.activemq import ActiveMQServer, running_activemq
from tests.servers.rabbitmq import RabbitServer, running_rabbitmq

BROKERS = ("rabbitmq", "activemq")
BrokerServer = RabbitServer | ActiveMQServer
STOP_SECONDS = 60.0


@contextmanager
def running_broker(name: str, folder: Path) -> Iterator[BrokerServer]:
    if name == "rabbitmq":
        with running_rabbitmq(folder / name) as rabbit:
            yield rabbit
    else:
        with running_activemq(folder / name) as activemq:
            yield activemq


def broker_at(server: BrokerServer) -> Broker:
    return broker_driver_of(server.url()).broker(server.url(), SystemClock(), Random(0))


@contextmanager
def working(app: str, database: str, broker: BrokerServer, prefix: str, *, batch: int = 1) -> Iterator[None]:
    """Run ``stagepost worker`` with one thread during the block, beside its broker process."""
    settings = {"STAGEPOST_DATABASE": database, "STAGEPOST_BROKER": broker.url(), PREFIX: prefix, BATCH: str(batch)}
    command = [sys.executable, "-m", "stagepost", "worker", f"benchmarks.broker_job:{app}", "--threads", "1"]
    process = subprocess.Popen([*command, "--processes", "1"], env=os.environ | settings, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def new_database(server: PostgresServer, name: str, *statements: str) -> str:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = f"{server.url.rpartition('/')[0]}/{name}"
    with psycopg.connect(url, autocommit=True) as connection:
        for each in statements:
            connection.execute(each.encode())
    return url
