"""The HTTP gateway: it accepts messages over HTTP, and a message is on the disk before it answers 200.

    from stagepost.gateway import Producer, Route, asgi

    application = asgi(app, routes=[Route("orders", to="orders.place")], producers=[Producer("erp", keys=[KEY_HASH])])

``application`` is an ASGI app. Any ASGI server runs it, and any ASGI framework mounts it. ``stagepost gateway
gateway.toml`` serves it with Hypercorn. See docs/gateway.md.
"""

from stagepost.gateway.application import Gateway, asgi
from stagepost.gateway.limits import Limits
from stagepost.gateway.posted import Posted
from stagepost.gateway.problems import Rejected
from stagepost.gateway.producers import Producer, hash_of_key, new_key
from stagepost.gateway.routes import Route

__all__ = ["Gateway", "Limits", "Posted", "Producer", "Rejected", "Route", "asgi", "hash_of_key", "new_key"]
