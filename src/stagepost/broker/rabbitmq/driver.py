"""The driver of ``amqp:`` and ``amqps:``. It imports py-amqp, which is an extra, only to make a broker."""

from __future__ import annotations

from importlib import import_module
from random import Random
from typing import cast

from stagepost.broker.sockets import TLS_PARAMETERS, tls_context
from stagepost.broker.url import BrokerUrl, parse, seconds_of
from stagepost.flow.clock import Clock
from stagepost.flow.errors import DeclarationError
from stagepost.ports.broker import Broker

PORTS = {"amqp": 5672, "amqps": 5671}
HEARTBEAT_SECONDS = 10.0
# RabbitMQ counts heart-beats in whole seconds.
HEARTBEAT_SECONDS_MIN = 1.0


def check(url: str) -> None:
    parsed(url)


def broker(url: str, clock: Clock, random: Random) -> Broker:
    try:
        module = import_module("stagepost.broker.rabbitmq.broker")
    except ImportError as error:
        raise DeclarationError(
            f"the broker URL names RabbitMQ, and its client cannot be imported ({error}). "
            "Run: pip install 'stagepost[rabbitmq]'"
        ) from error
    return cast("Broker", module.rabbit_broker(parsed(url), clock, random))


def parsed(url: str) -> BrokerUrl:
    """Return the parts of the URL. Raises ``DeclarationError``."""
    parameters = {"heartbeat", "management"} | (TLS_PARAMETERS if url.startswith("amqps:") else set())
    found = parse(url, PORTS, parameters)
    seconds_of(found, "heartbeat", HEARTBEAT_SECONDS, HEARTBEAT_SECONDS_MIN)
    management = found.parameters.get("management", "http://")
    if not management.startswith(("http://", "https://")):
        raise DeclarationError(
            f"{found.shown}: the parameter management must be the URL of RabbitMQ's management API, such as "
            f"http://rabbit:15672, not {management!r}."
        )
    if found.scheme == "amqps":
        tls_context(found)
    return found
