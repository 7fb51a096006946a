"""The parts of a broker URL: ``scheme://user:password@host:port,host:port/path?parameter=value``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from stagepost.flow.errors import DeclarationError
from stagepost.flow.urls import shown_url

PORT_MAX = 65535


class Host(NamedTuple):
    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """A broker URL, taken apart and decoded. ``path`` begins after the ``/``, and is None where the URL has none."""

    shown: str
    scheme: str
    hosts: tuple[Host, ...]
    path: str | None
    user: str
    password: str = field(repr=False)
    parameters: Mapping[str, str] = field(repr=False)


def parse(url: str, ports: Mapping[str, int], parameters: Collection[str] = ()) -> BrokerUrl:
    """Take a URL apart. Raises ``DeclarationError``, whose text has no password.

    ``ports`` gives the port of each scheme where the URL has none. ``parameters`` are those that a URL may have.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ports:
        raise _wrong(url, f"begins with none of {', '.join(f'{each}://' for each in ports)}")
    credentials, at, place = rest.rpartition("@")
    user, _, password = credentials.partition(":")
    if at and {"/", "?", "@"} & set(credentials):
        raise _wrong(url, "has a sign before the last @ that must be written with a %-sign")
    place, _, query = place.partition("?")
    hosts, slash, path = place.partition("/")
    given = dict(parse_qsl(query, keep_blank_values=True))
    for each in given:
        if each not in parameters:
            raise _wrong(url, f"has the parameter {each!r}, and only {', '.join(sorted(parameters))} are known")
    return BrokerUrl(
        shown_url(url),
        scheme,
        tuple(_host(url, each, ports[scheme]) for each in hosts.split(",")),
        unquote(path) if slash else None,
        unquote(user),
        unquote(password),
        given,
    )


def seconds_of(url: BrokerUrl, name: str, default: float, least: float) -> float:
    """Return a parameter that is a number of seconds. Raises ``DeclarationError``."""
    text = url.parameters.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not least <= seconds <= PORT_MAX:
        raise DeclarationError(
            f"{url.shown}: the parameter {name} must be a number of seconds from {least:g} to {PORT_MAX}, not {text!r}."
        )
    return seconds


def _host(url: str, text: str, port: int) -> Host:
    name, bracket, number = text.partition("]")
    if bracket:
        name, number = name.removeprefix("["), number.removeprefix(":")
    else:
        name, _, number = text.partition(":")
    if not name or (number and not (number.isdecimal() and 0 < int(number) <= PORT_MAX)):
        raise _wrong(url, "has a host without a name, or a port that is not a number from 1 to 65535")
    return Host(name, int(number) if number else port)


def _wrong(url: str, reason: str) -> DeclarationError:
    return DeclarationError(
        f"the broker URL {shown_url(url)!r} {reason}. Write scheme://user:password@host:port/path, with several hosts "
        "separated by commas, and %-signs for what is not a letter or a digit in user and password."
    )
