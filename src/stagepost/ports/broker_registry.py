"""The registry of brokers: the scheme of a URL names the driver that connects to the broker.

A package adds a driver by an entry point of the group ``stagepost.brokers``. Its name is the scheme, its value the
driver.
"""

from __future__ import annotations

from stagepost.flow.errors import DeclarationError
from stagepost.flow.urls import shown_url
from stagepost.ports.broker import BrokerDriver
from stagepost.ports.drivers import DriverFinder

DRIVERS = DriverFinder(
    "stagepost.brokers",
    "brokers",
    {
        "amqp": "stagepost.broker.rabbitmq.driver",
        "amqps": "stagepost.broker.rabbitmq.driver",
        "memory": "stagepost.broker.memory.driver",
    },
)


def broker_driver_of(url: str) -> BrokerDriver:
    """Return the driver for a URL, which it has checked. Raises ``DeclarationError``."""
    driver: BrokerDriver | None = DRIVERS.find(url)
    if driver is None:
        raise unknown_broker(url)
    driver.check(url)
    return driver


def unknown_broker(url: str) -> DeclarationError:
    return DeclarationError(
        f"{shown_url(url)!r} is not a broker URL Stagepost knows. Write amqp://user:password@host:5672/vhost for "
        "RabbitMQ, or amqps:// for RabbitMQ over TLS. Commas separate several hosts."
    )
