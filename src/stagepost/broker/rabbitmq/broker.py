"""Open connections to RabbitMQ."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

from amqp.exceptions import AMQPError

from stagepost.broker.failover import FailoverBroker
from stagepost.broker.rabbitmq.connection import RabbitConnection
from stagepost.broker.rabbitmq.driver import HEARTBEAT_SECONDS, HEARTBEAT_SECONDS_MIN
from stagepost.broker.rabbitmq.link import MALFORMED, PRODUCT, AmqpConnection, Link, reason_of
from stagepost.broker.rabbitmq.management import api_at
from stagepost.broker.rabbitmq.topology import YOUNG_SECONDS
from stagepost.broker.rabbitmq.transport import Transport
from stagepost.broker.sockets import open_socket, tls_context
from stagepost.broker.url import BrokerUrl, Host, seconds_of
from stagepost.flow.clock import Clock
from stagepost.flow.errors import BrokerDenied, BrokerUnavailable
from stagepost.flow.texts import as_sentence
from stagepost.ports.broker import BrokerFeatures

# The replies by which a broker refuses the credentials or the virtual host.
DENYING = frozenset({402, 403, 530})


def rabbit_broker(
    url: BrokerUrl,
    clock: Clock,
    random: Random,
    *,
    young_seconds: float = YOUNG_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> FailoverBroker:
    """Return the broker of a URL.

    ``young_seconds``  the age at which a new queue is taken for safe
    """
    tls = tls_context(url) if url.scheme == "amqps" else None
    management = url.parameters.get("management")
    ask = None
    if management is not None:
        ask = api_at(management, url.user or "guest", url.password or "guest", tls)
    heartbeat = seconds_of(url, "heartbeat", HEARTBEAT_SECONDS, HEARTBEAT_SECONDS_MIN)

    def open_host(host: Host, seconds: float) -> RabbitConnection:
        deadline = clock.monotonic() + seconds
        transport = Transport(open_socket(host, tls, seconds), clock.monotonic)
        amqp = AmqpConnection(
            transport,
            clock.monotonic,
            host=str(host),
            userid=url.user or "guest",
            password=url.password or "guest",
            # PLAIN alone: the default also asks a Kerberos library.
            login_method="PLAIN",
            virtual_host=url.path or "/",
            heartbeat=round(heartbeat),
            client_properties={"product": PRODUCT},
        )
        amqp.deadline = deadline
        try:
            amqp.connect()
        except TimeoutError as error:
            amqp.collect()
            raise BrokerUnavailable(f"no answer within {seconds:g} s") from error
        except AMQPError as error:
            amqp.collect()
            if error.reply_code in DENYING:
                raise BrokerDenied(
                    f"the broker at {host} refuses the user {url.user or 'guest'!r} or the virtual host "
                    f"{url.path or '/'!r}: {as_sentence(reason_of(error))} Correct the broker URL, or grant the rights."
                ) from error
            raise BrokerUnavailable(reason_of(error)) from error
        except OSError as error:
            amqp.collect()
            raise BrokerUnavailable(reason_of(error)) from error
        except MALFORMED as error:
            amqp.collect()
            raise BrokerUnavailable(f"it answers with bytes that are not AMQP 0-9-1: {error}") from error
        link = Link(amqp, str(host), clock)
        connection = RabbitConnection(link, features_of(amqp.server_properties), young_seconds, ask)
        link.start()
        return connection

    return FailoverBroker(url, open_host, clock, random, sleep)


def features_of(properties: dict[str, Any]) -> BrokerFeatures:
    return BrokerFeatures(
        str(properties.get("product", "")),
        str(properties.get("version", "")),
        is_atomic=False,
        finds_unroutable=True,
        body_bytes_max=None,
    )
