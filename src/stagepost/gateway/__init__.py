"""The HTTP gateway: it accepts messages over HTTP, and a message is on the disk before it answers 200.

    from stagepost.gateway import Producer, Route, asgi

    application = asgi(app, routes=[Route("orders", to="orders.place")], producers=[Producer("erp", keys=[KEY_HASH])])

``application`` is an ASGI app. Any ASGI server runs it, and any ASGI framework mounts it. ``stagepost gateway
gateway.toml`` serves it with Hypercorn. See docs/gateway.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagepost.gateway.application import Gateway, asgi
    from stagepost.gateway.limits import Limits
    from stagepost.gateway.posted import Posted
    from stagepost.gateway.problems import Rejected
    from stagepost.gateway.producers import Producer, hash_of_key, new_key
    from stagepost.gateway.routes import Route

# A consumer that imports the receiver needs no HTTP server, so these modules are imported when they are asked for.
_MODULES = {
    "Gateway": "application",
    "Limits": "limits",
    "Posted": "posted",
    "Producer": "producers",
    "Rejected": "problems",
    "Route": "routes",
    "asgi": "application",
    "hash_of_key": "producers",
    "new_key": "producers",
}

__all__ = ["Gateway", "Limits", "Posted", "Producer", "Rejected", "Route", "asgi", "hash_of_key", "new_key"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
