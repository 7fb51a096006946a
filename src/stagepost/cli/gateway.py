"""``stagepost gateway``"""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

import click
import msgspec

from stagepost.app.app import engine_of
from stagepost.app.logs import configure
from stagepost.cli.children import BEYOND_GRACE_SECONDS, Child, Children
from stagepost.cli.exits import readable_errors
from stagepost.cli.options import json_option, log_level_option
from stagepost.cli.show import echo
from stagepost.flow.errors import DeclarationError
from stagepost.flow.texts import as_sentence
from stagepost.runtime.assembly import check_databases
from stagepost.runtime.settings import handing_down

BACKLOG = 1_024

logger = logging.getLogger(__name__)


@click.command()
@click.argument("configuration_path", metavar="GATEWAY.TOML", default="gateway.toml", type=click.Path(path_type=Path))
@click.option("--new-key", "is_new_key", is_flag=True, help="Print a new API key with its hash, and end.")
@click.option("--check", "is_check", is_flag=True, help="Check the configuration, print its routes, and end.")
@log_level_option("INFO")
@json_option
def gateway(configuration_path: Path, is_new_key: bool, is_check: bool, log_level: str, as_json: bool) -> None:
    """Accept messages over HTTP, and deliver those of its routes, as GATEWAY.TOML says, until a signal stops it.

    A message is committed before its request is answered with 200. Workers of the command deliver to the consumers. At
    SIGTERM or Ctrl-C the requests and deliveries at work finish. A process that dies is replaced.
    """
    configure(log_level.upper(), as_json=as_json)
    with readable_errors():
        try:
            from stagepost.gateway.configuration import app_of, deliveries_of, gateway_of, read_configuration  # noqa: PLC0415 - an extra
            from stagepost.gateway.producers import hash_of_key, new_key  # noqa: PLC0415 - it needs an extra
        except ModuleNotFoundError as error:
            raise DeclarationError(
                f"the gateway needs the package {error.name!r}: pip install 'stagepost[gateway]'"
            ) from error
        if is_new_key:
            key = new_key()
            echo(f"key   {key}\nhash  {hash_of_key(key)}\nGive the producer the key, and write the hash into its keys.")
            return
        path = configuration_path.resolve()
        configuration = read_configuration(path)
        app = app_of(configuration, path.parent)
        gateway_of(configuration, app, path.parent)
        if is_check:
            for route in configuration.route:
                echo(f"POST /{route.name}  to {route.to or 'a consumer outside'}")
            return
        engine = engine_of(app)
        engine.modes()
        check_databases(engine)
        environment = handing_down(engine.databases.place)
        host, port = configuration.address
        with _listen(host, port) as listening:
            plan = {
                "path": str(path),
                "descriptor": listening.fileno(),
                "parent": os.getpid(),
                "log_level": log_level.upper(),
                "log_json": as_json,
            }
            text = msgspec.json.encode(plan).decode()
            children = [
                Child(f"HTTP process {number}", "stagepost.cli.gateway_process", text, [listening.fileno()])
                for number in range(1, configuration.processes + 1)
            ]
            logger.info(
                "gateway listens on %s:%d, routes %d, processes %d, on %s",
                *listening.getsockname()[:2],
                len(configuration.route),
                len(children),
                engine.databases.entrance.url,
                extra={"event": "gateway-listens"},
            )
            deliveries = deliveries_of(configuration, app)
            if deliveries is not None:
                place = engine_of(deliveries).databases.place
                plan = {**plan, "processes": configuration.delivery_processes, "grace": configuration.grace}
                text = msgspec.json.encode(plan).decode()
                module = "stagepost.cli.gateway_deliveries"
                children.append(Child("delivery process", module, text, environment=handing_down(place, path)))
            # The parent of the workers may need its own time beyond the grace.
            grace = configuration.grace + (0 if deliveries is None else BEYOND_GRACE_SECONDS)
            # A new connection would wait in this socket for a process that never comes.
            code = Children(children, environment, engine.clock, grace, listening.close).run()
    logger.info("gateway stopped", extra={"event": "gateway-stopped"})
    sys.exit(code)


def _listen(host: str, port: int) -> socket.socket:
    """Open the socket that all processes accept from. Raises ``DeclarationError``."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        raise DeclarationError(
            f"the gateway cannot listen on {host}:{port}: {as_sentence(error)} Change bind"
        ) from error
    return listening
