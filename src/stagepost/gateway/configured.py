"""The deliveries of the gateway that started this process, as an app that its workers load."""

from __future__ import annotations

from functools import cache

from stagepost.app.app import App
from stagepost.flow.errors import DeclarationError
from stagepost.gateway.configuration import deliveries_of, read_configuration
from stagepost.runtime.settings import handed_down_gateway


@cache
def _deliveries() -> App:
    path = handed_down_gateway()
    made = deliveries_of(read_configuration(path))
    if made is None:
        raise DeclarationError(f"{path} has no route that delivers to a consumer outside")
    return made


def __getattr__(name: str) -> App:
    # An app is looked up as an attribute of a module, and this one is known only once the process runs.
    if name != "deliveries":
        raise AttributeError(name)
    return _deliveries()
