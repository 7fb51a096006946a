"""The declaration of a delivery: where the messages of a route go, and how the consumer's answers are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from stagepost.flow.clock import is_span
from stagepost.flow.errors import DeclarationError
from stagepost.gateway.out.signatures import key_of
from stagepost.recovery.redelivery import Redelivery
from stagepost.runtime.settings import read_secret

TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
CONCURRENCY = 4
CONCURRENCY_MAX = 256
# So many different messages that fail in a row are no message's fault.
PAUSE_AFTER = 3
REDELIVERY = Redelivery.exponential(12, first_seconds=1.0, factor=2.0, cap_seconds=600.0)

MEANINGS = ("taken", "refused", "misplaced", "failed")
STATUSES = range(200, 600)
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# The gateway writes these headers itself.
OWN_HEADERS = frozenset(
    {"content-length", "transfer-encoding", "host", "connection", "content-type", "message-id", "idempotency-key"}
)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The delivery of a route's messages to a consumer outside. Raises ``DeclarationError``.

    ``url``              where each message is posted: ``https``, or ``http`` for a host of ``allow_private``
    ``secret``           the secrets of the signature, ``whsec_`` and base64; several while a consumer changes its own
    ``headers``          headers of every request, such as ``Authorization``
    ``redelivery``       the intervals after failures
    ``timeout_seconds``  the time of one whole attempt, and ``connect_seconds`` that of its connection
    ``concurrency``      how many deliveries of the route each worker process has under way: it has so many threads
    ``pause_after``      so many different messages that fail in a row pause the route
    ``statuses``         the meaning of statuses, where it differs: ``taken``, ``refused``, ``misplaced``, ``failed``
    ``error_header``     a header that makes any answer a business error
    ``error_field``      a field of the answer's JSON body that does so if it is not empty, such as ``error.code``
    ``report_to``        the endpoint of the app that gets a ``Refusal`` for each business error
    ``allow_private``    hosts that may be on a private network, by name
    ``ca_file``          the certificates to trust, in place of the system's
    """

    url: str
    secret: str | Sequence[str] = field(default=(), repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    redelivery: Redelivery = REDELIVERY
    timeout_seconds: float = TIMEOUT_SECONDS
    connect_seconds: float = CONNECT_SECONDS
    concurrency: int = CONCURRENCY
    pause_after: int = PAUSE_AFTER
    statuses: Mapping[int | str, str] = field(default_factory=dict)
    error_header: str | None = None
    error_field: str | None = None
    report_to: str | None = None
    allow_private: Sequence[str] = ()
    ca_file: str | None = None

    def __post_init__(self) -> None:
        self._check_url()
        self._check_headers()
        for name in ("timeout_seconds", "connect_seconds"):
            if not is_span(getattr(self, name)) or not getattr(self, name):
                raise DeclarationError(f"{name} of {self.host} must be a number of seconds above 0")
        if isinstance(self.concurrency, bool) or not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise DeclarationError(f"concurrency of {self.host} must be a whole number from 1 to {CONCURRENCY_MAX}")
        for status, meaning in self.statuses.items():
            if not str(status).isdecimal() or int(status) not in STATUSES or meaning not in MEANINGS:
                raise DeclarationError(
                    f"statuses of {self.host} has {status!r} = {meaning!r}. Write a status from 200 to 599, and one of "
                    f"{', '.join(MEANINGS)}"
                )
        if self.ca_file is not None and not Path(self.ca_file).is_file():
            raise DeclarationError(f"ca_file of {self.host} names {self.ca_file}, which is no file")
        _ = self.keys

    @property
    def host(self) -> str:
        """The host of the URL. Logs show no more of it, because a path may hold a token."""
        return urlsplit(self.url).hostname or ""

    @property
    def keys(self) -> list[bytes]:
        secrets = [self.secret] if isinstance(self.secret, str) else self.secret
        return [key_of(each, self.host) for each in secrets]

    @property
    def meanings(self) -> dict[int, Literal["taken", "refused", "misplaced", "failed"]]:
        return {int(status): meaning for status, meaning in self.statuses.items()}  # type: ignore[misc]  # checked above

    def _check_url(self) -> None:
        try:
            parts = urlsplit(self.url)
            has_port = parts.port is None or parts.port > 0
        except ValueError:
            raise DeclarationError("the url of a delivery is not valid. Write it as https://host/path") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or not has_port or parts.fragment:
            raise DeclarationError("the url of a delivery must be https://host/path, without a fragment")
        if parts.username is not None or parts.password is not None:
            raise DeclarationError(
                f"the url of the delivery to {parts.hostname} contains a password. Give it as a header, such as "
                "Authorization"
            )
        if not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise DeclarationError(f"the url of the delivery to {parts.hostname!r} has characters that must be escaped")
        if isinstance(self.allow_private, str):
            raise DeclarationError("allow_private is a list of hosts")
        if parts.scheme == "http" and parts.hostname not in self.allow_private:
            raise DeclarationError(
                f"the delivery to {parts.hostname} is not encrypted. Use https, or name the host in allow_private if "
                "it is on a private network"
            )

    def _check_headers(self) -> None:
        for name, value in self.headers.items():
            if not HEADER_NAME.fullmatch(name) or name.lower() in OWN_HEADERS:
                raise DeclarationError(f"a delivery to {self.host} cannot have the header {name!r:.60}")
            if not value.isascii() or not value.isprintable() or value != value.strip():
                # The value may be a secret.
                raise DeclarationError(f"the header {name} of the delivery to {self.host} must be printable ASCII")


def read_delivery(place: str, table: Mapping[str, Any]) -> Delivery:
    """Build a delivery from a table of a TOML file. Raises ``DeclarationError``, which begins with ``place``.

    ``secret_variables`` are environment variables that hold the secrets, and ``header_variables`` those that hold
    headers, by the header's name. ``redelivery`` is a table: ``{kind = "fixed", every_seconds = 60, times = 100}``, or
    ``{kind = "exponential", redeliveries = 12, …}``.
    """
    settings = dict(table)
    known = set(Delivery.__dataclass_fields__) | {"secret_variables", "header_variables"}
    unknown = sorted(settings.keys() - known)
    if unknown or "url" not in settings:
        fault = f"has {unknown[0]!r}" if unknown else "has no url"
        raise DeclarationError(f"{place} {fault}. It may hold: {', '.join(sorted(known))}")
    if "secret_variables" in settings:
        settings["secret"] = [_read_variable(place, each) for each in settings.pop("secret_variables")]
    if "header_variables" in settings:
        read = {name: _read_variable(place, each) for name, each in dict(settings.pop("header_variables")).items()}
        settings["headers"] = {**settings.get("headers", {}), **read}
    if "redelivery" in settings:
        settings["redelivery"] = _read_redelivery(place, settings["redelivery"])
    try:
        return Delivery(**settings)
    except (TypeError, AttributeError, ValueError) as error:
        raise DeclarationError(f"{place} has a value of a wrong type: {error}") from error
    except DeclarationError as error:
        raise DeclarationError(f"{place}: {error}") from error


def _read_variable(place: str, variable: object) -> str:
    value = read_secret(str(variable))
    if value is None:
        raise DeclarationError(f"{place} names the environment variable {variable!r:.80}, which is not set")
    return value


def _read_redelivery(place: str, table: object) -> Redelivery:
    makers: dict[str, Callable[..., Redelivery]] = {"fixed": Redelivery.fixed, "exponential": Redelivery.exponential}
    settings = dict(table) if isinstance(table, Mapping) else {}
    maker = makers.get(str(settings.pop("kind", "")))
    if maker is None:
        raise DeclarationError(f'{place}: redelivery is a table with kind = "fixed" or kind = "exponential"')
    try:
        return maker(**settings)
    except TypeError as error:
        raise DeclarationError(f"{place}: redelivery has a setting that its kind does not know: {error}") from error
