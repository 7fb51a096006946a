"""The edge of a store: the app's broker, the addresses that the app receives from, and connections to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stagepost.flow.errors import BrokerDenied, BrokerError, BrokerMismatch, BrokerUnavailable
from stagepost.ports.broker import Broker, BrokerConnection, subscriber_address
from stagepost.runtime.engine import Engine
from stagepost.runtime.modes import check_direct
from stagepost.runtime.service import StopFlag
from stagepost.transaction.arrivals import Entrance, replies_address
from stagepost.transaction.stage import DIRECT

logger = logging.getLogger(__name__)

# The role of the process with the receiver and the dispatcher.
ROLE = "broker"
CONNECT_SECONDS = 10.0
# A thread that waits for its broker looks for its stop signal so often.
STOP_SECONDS = 1.0
RECONNECT_SECONDS = 1.0
# An error that another try cannot cure is logged, and tried again after a while: somebody may cure it.
REFUSED_SECONDS = 30.0


def broker_of(engine: Engine) -> Broker:
    """Return the app's broker. Raises ``DeclarationError``."""
    return engine.broker()


def entrances_of(engine: Engine) -> list[Entrance]:
    """Return the addresses that the app receives from.

    They are its stages, its subscriptions, and the replies to processes of its store.
    """
    stages = [
        Entrance(
            address,
            address,
            stage.handlers[0].message_type.__name__,
            stage.foreign,
            # The first stage of an endpoint has the endpoint's address. Replies come to the others.
            takes_replies_alone=address != stage.position.endpoint,
        )
        for address, stage in engine.stages().items()
    ]
    subscribers = [
        Entrance(subscriber_address(each.topic, each.subscriber), each.subscriber, topic=each.topic)
        for each in engine.databases.subscriptions
    ]
    return [*stages, *subscribers, Entrance(replies_address(engine.store_uuid), None, takes_replies_alone=True)]


def received(engine: Engine, *, is_direct: bool) -> list[Entrance]:
    """Return the addresses that stages in the direct modes consume from, or the others, which a receiver has."""
    direct = {address for address, mode in engine.modes().items() if mode in DIRECT}
    return [each for each in entrances_of(engine) if (each.stage in direct) is is_direct]


def prepare(connection: BrokerConnection, entrances: Sequence[Entrance], store: str) -> None:
    """Declare the addresses at the broker, for this store alone. Raises ``BrokerError``."""
    connection.prepare([each.address for each in entrances], store)


def connected(
    broker: Broker,
    stop: StopFlag,
    log: logging.Logger,
    entrances: Sequence[Entrance] = (),
    store: str = "",
    on_trouble: Callable[[str], None] = lambda trouble: None,
) -> BrokerConnection | None:
    """Connect, and prepare the addresses. Wait while the broker is away. Return None if the thread must stop first.

    ``on_trouble`` is told each error, and an empty text once the connection is there.
    """
    while not stop.is_stopped:
        connection: BrokerConnection | None = None
        try:
            connection = broker.connect(STOP_SECONDS)
            if entrances:
                prepare(connection, entrances, store)
        except BrokerError as error:
            if connection is not None:
                connection.close()
            log_away(log, error, pause_after(error))
            on_trouble(str(error))
            stop.wait(pause_after(error))
        else:
            on_trouble("")
            return connection
    return None


def check_broker(engine: Engine) -> None:
    """Connect once, and prepare the addresses, before anything runs.

    Raises ``BrokerError`` for an error that only people can cure: credentials, another store, another queue. Raises
    ``DeclarationError`` for a broker that does not keep the promise of a stage's mode. A broker that is away is no such
    error, because stages run without it.
    """
    broker = broker_of(engine)
    try:
        connection = broker.connect(CONNECT_SECONDS)
    except BrokerUnavailable:
        return
    try:
        modes = engine.modes()
        check_direct(engine.stages().values(), modes, connection.features)
        direct = sorted(address for address, mode in modes.items() if mode in DIRECT)
        if direct and not connection.features.is_atomic:
            logger.warning(
                "%s has no transactions, so %s may handle a message again after a crash. The copies that they send "
                "have the ids of the first ones",
                connection.features.product,
                ", ".join(direct),
                extra={"event": "at-least-once"},
            )
        prepare(connection, entrances_of(engine), engine.store_uuid)
    except BrokerUnavailable:
        return
    finally:
        connection.close()


def pause_after(error: BrokerError) -> float:
    """Return how long to wait before another try. People alone can cure what is no outage."""
    return RECONNECT_SECONDS if isinstance(error, BrokerUnavailable) else REFUSED_SECONDS


def log_away(log: logging.Logger, error: BrokerError, seconds: float) -> None:
    level = logging.ERROR if isinstance(error, BrokerDenied | BrokerMismatch) else logging.WARNING
    log.log(level, "broker unavailable, retrying in %g s: %s", seconds, error, extra={"event": "broker-unavailable"})
