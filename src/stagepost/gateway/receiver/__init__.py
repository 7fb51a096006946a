"""The duplicate check of a consumer: its work for each message id commits once, in its own database.

    from stagepost.gateway.receiver import receive

    with psycopg.connect(url) as connection:
        if receive(connection, request.headers["Message-Id"], body).is_new:
            place_order(connection, body)

``AsgiReceiver`` and ``WsgiReceiver`` do this around a whole application: see docs/gateway_consumers.md.
"""

from stagepost.gateway.receiver.asgi import AsgiReceiver
from stagepost.gateway.receiver.delivery import CONNECTION
from stagepost.gateway.receiver.received import AnotherBody, AtWork, Received, make_table, purge, receive
from stagepost.gateway.receiver.wsgi import WsgiReceiver

__all__ = [
    "CONNECTION",
    "AnotherBody",
    "AsgiReceiver",
    "AtWork",
    "Received",
    "WsgiReceiver",
    "make_table",
    "purge",
    "receive",
]
