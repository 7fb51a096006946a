"""Read ``gateway.toml``: the app, the address, the producers and the routes of a gateway."""

from __future__ import annotations

import tomllib
from ipaddress import ip_address
from pathlib import Path

import msgspec

from stagepost.app.app import App
from stagepost.app.loading import load_app
from stagepost.flow.errors import DeclarationError
from stagepost.gateway.application import Gateway, asgi
from stagepost.gateway.limits import Limits
from stagepost.gateway.producers import Producer, Proxy
from stagepost.gateway.routes import Route, delivery_of
from stagepost.gateway.steps import GatewayListener, unobserved_gateway
from stagepost.runtime.settings import read_secret, read_settings

PORT_MAX = 65_535
# The app of a gateway that only delivers to consumers outside.
OWN_APP = "gateway"


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of ``gateway.toml``.

    ``app``         ``module:attribute``; default: the app of the settings where a route needs one, else an own app
    ``database``    the URL of the store; default: that of the app, or of the settings
    ``bind``        the address and the port
    ``processes``   processes that serve HTTP, and ``delivery_processes`` those that deliver to consumers outside
    ``grace``       seconds that requests at work get to finish after a stop signal
    ``certificate``, ``certificate_key``  the files for TLS by the gateway itself
    ``title``       the title of the OpenAPI document; ``documents`` = false hides it and its page
    ``anonymous``   the producer of requests without credentials; for a loopback address only
    """

    app: str | None = None
    database: str | None = None
    bind: str = "127.0.0.1:8400"
    processes: int = 1
    delivery_processes: int = 1
    grace: float = 10.0
    certificate: str | None = None
    certificate_key: str | None = None
    title: str = "Stagepost gateway"
    documents: bool = True
    anonymous: str | None = None
    limits: Limits = Limits()
    proxy: Proxy | None = None
    producer: list[Producer] = []
    route: list[Route] = []

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of ``bind``. Raises ``DeclarationError``."""
        host, colon, port = self.bind.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > PORT_MAX:
            raise DeclarationError(f"bind is {self.bind!r}; write host:port, such as 127.0.0.1:8400")
        return host.strip("[]"), int(port)


def read_configuration(path: Path) -> Configuration:
    """Read a configuration. Raises ``DeclarationError``, with the place of a mistake."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise DeclarationError(f"{path} is not valid TOML: {error}") from error
    try:
        read = msgspec.convert(content, Configuration)
    except msgspec.ValidationError as error:
        raise DeclarationError(f"{path} has a mistake: {error}") from error
    host, _ = read.address
    if read.anonymous is not None and not _is_loopback(host):
        raise DeclarationError(
            f"{path} accepts requests without credentials (anonymous), and binds to {host}, which others can reach. "
            "Bind to 127.0.0.1, or give each producer a key"
        )
    for name in ("processes", "delivery_processes"):
        if getattr(read, name) < 1:
            raise DeclarationError(f"{path}: {name} must be 1 or more, not {getattr(read, name)}")
    if (read.certificate is None) != (read.certificate_key is None):
        raise DeclarationError(f"{path}: TLS needs both certificate and certificate_key")
    return read


def app_of(configuration: Configuration, folder: Path) -> App:
    """Return the app whose endpoints the routes name, on its database. Raises ``DeclarationError``."""
    needs_app = any(each.to is not None for each in configuration.route)
    name = configuration.app or (read_settings().app if needs_app else None)
    if name is None and needs_app:
        raise DeclarationError("a route names an endpoint, and no app is named that has it. Write app = 'myapp:app'")
    app = App(OWN_APP, database=configuration.database) if name is None else load_app(name, folder)
    if name is not None and configuration.database is not None:
        app.database = configuration.database
    return app


def deliveries_of(configuration: Configuration, app: App | None = None) -> App | None:
    """Return an app that has the deliveries of the routes, and nothing else. None if there are none.

    It is on the database of the messages of ``app``, or of the configuration. A gateway's workers run it, and so they
    run no stage of the user's app. Raises ``DeclarationError``.
    """
    routes = [each for each in configuration.route if each.deliver is not None]
    if not routes:
        return None
    made = App(OWN_APP, database=configuration.database if app is None else app.queue or app.database)
    for each in routes:
        delivery_of(made, each)
    return made


def gateway_of(
    configuration: Configuration, app: App, folder: Path, listener: GatewayListener = unobserved_gateway
) -> Gateway:
    """Return the ASGI app of a configuration. Raises ``DeclarationError``."""
    return asgi(
        app,
        deliveries=deliveries_of(configuration, app),
        routes=configuration.route,
        producers=[_with_secrets(each) for each in configuration.producer],
        proxy=configuration.proxy,
        anonymous=configuration.anonymous,
        limits=configuration.limits,
        title=configuration.title,
        has_documents=configuration.documents,
        folder=folder,
        listener=listener,
    )


def _with_secrets(producer: Producer) -> Producer:
    """Replace the names of environment variables by the secrets in them. Raises ``DeclarationError``."""
    found: list[str] = []
    for variable in producer.secrets:
        secret = read_secret(variable)
        if secret is None:
            raise DeclarationError(
                f"producer {producer.name!r} takes a secret from the environment variable {variable!r}, which is not "
                "set. A secret itself does not belong into the file"
            )
        found.append(secret)
    return msgspec.structs.replace(producer, secrets=found)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
