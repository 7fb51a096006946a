"""The producers that a gateway knows, and how a request proves that it comes from one of them.

A producer is a stable name. Its keys and secrets change without changing an id. Keys are kept as hashes; they are
random and long, so a plain SHA-256 is enough. HMAC secrets must be readable, and come from the environment.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec
from starlette.datastructures import Headers

from stagepost.flow.errors import DeclarationError
from stagepost.gateway.problems import Problem

KEY_PREFIX = "sp_"
HASH_PREFIX = "sha256:"
SECRET_BYTES_MIN = 16
# A signed request is refused when its time is further off than this.
TOLERANCE_SECONDS = 300

PRODUCER_HEADER = "stagepost-producer"
TIMESTAMP_HEADER = "stagepost-timestamp"
SIGNATURE_HEADER = "stagepost-signature"
SIGNATURE_PREFIX = "v1="

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")


def new_key() -> str:
    """Return a new API key with 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_of_key(key: str) -> str:
    """Return the hash of a key, as the configuration keeps it."""
    return HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


class Producer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A producer of messages.

    ``name``          the stable name, which is a part of every message id
    ``keys``          hashes of its API keys; give two while you replace one
    ``secrets``       its HMAC secrets of 16 bytes or more; in TOML the names of environment variables with them
    ``certificates``  the subjects of its client certificates, as the proxy's header has them
    """

    name: str
    keys: list[str] = []
    secrets: list[str] = []
    certificates: list[str] = []

    def __repr__(self) -> str:
        return f"<Producer {self.name}>"


class Proxy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The proxies that check client certificates, and the header in which they name the certificate's subject."""

    addresses: list[str]
    header: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """A producer that a request names. A signature is checked only after the body has arrived."""

    producer: str
    signature: str | None = None
    timestamp: str = ""

    @property
    def is_proved(self) -> bool:
        return self.signature is None


def text_to_sign(timestamp: str, method: str, target: str, message_id: str, body: bytes) -> bytes:
    """Return the bytes that an HMAC signature covers. ``target`` is the path with its query, as it is sent."""
    return "\n".join((timestamp, method, target, message_id, hashlib.sha256(body).hexdigest())).encode()


def sign(secret: str, timestamp: str, method: str, target: str, message_id: str, body: bytes) -> str:
    """Return the value of the signature's header."""
    text = text_to_sign(timestamp, method, target, message_id, body)
    return SIGNATURE_PREFIX + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


class Authentication:
    """Finds the producer of a request. ``anonymous`` is the producer of requests without credentials, if any."""

    def __init__(self, producers: Sequence[Producer], proxy: Proxy | None = None, anonymous: str | None = None) -> None:
        self._keys: dict[str, str] = {}
        self._secrets: dict[str, list[str]] = {}
        self._subjects: dict[str, str] = {}
        self._anonymous = anonymous
        self._header = "" if proxy is None else proxy.header
        self._proxies = [] if proxy is None else [_network(each) for each in proxy.addresses]
        for each in producers:
            self._add(each, has_proxy=proxy is not None)
        if anonymous is not None and (anonymous in self._secrets or not NAME.fullmatch(anonymous)):
            raise DeclarationError(
                f"anonymous is {anonymous!r}, which must be a producer's name, and the name of no producer with "
                "credentials"
            )
        self.names = frozenset({each.name for each in producers} | ({anonymous} if anonymous else set()))
        if not self.names:
            raise DeclarationError(
                "the gateway has no producer, so no request could be accepted. Add a producer with a key: "
                "stagepost gateway --new-key prints one with its hash"
            )

    def claim(self, headers: Headers, client: str | None) -> Claimed:
        """Return the producer that the headers name or prove. Raises ``Problem``, without a hint which part is wrong.

        ``client`` is the address of the connection, which may be a proxy's.
        """
        if SIGNATURE_HEADER in headers:
            return self._claim_signed(headers)
        authorization = headers.get("authorization")
        if authorization is not None:
            return Claimed(self._of_key(authorization))
        if self._header and self._header in headers and self._is_proxy(client):
            if len(headers.getlist(self._header)) > 1:
                # A proxy that adds its header behind the client's own one would let the client choose its name.
                raise _invalid(f"the header {self._header} is given twice")
            producer = self._subjects.get(headers[self._header])
            if producer is None:
                raise _invalid("the client certificate belongs to no producer")
            return Claimed(producer)
        if self._anonymous is not None:
            return Claimed(self._anonymous)
        raise Problem(
            "credentials-missing",
            "the request has neither a key nor a signature nor a client certificate",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def check_signature(
        self, claimed: Claimed, method: str, target: str, message_id: str, body: bytes, now: int
    ) -> None:
        """Raise ``Problem`` unless the signature is valid now. ``now`` is in seconds since 1970."""
        if claimed.signature is None:
            return
        is_valid = False
        for secret in self._secrets.get(claimed.producer, [secrets.token_hex(SECRET_BYTES_MIN)]):
            expected = sign(secret, claimed.timestamp, method, target, message_id, body)
            # No early end, so that the time tells nothing.
            is_valid |= hmac.compare_digest(expected.encode(), claimed.signature.encode())
        if not is_valid:
            raise _invalid("the signature does not match the request")
        # Only the signature's owner learns that the clock is off.
        if abs(now - int(claimed.timestamp)) > TOLERANCE_SECONDS:
            raise Problem(
                "signature-expired", f"the signature's time is more than {TOLERANCE_SECONDS} s from the gateway's clock"
            )

    def _add(self, producer: Producer, *, has_proxy: bool) -> None:
        name = producer.name
        if not NAME.fullmatch(name):
            raise DeclarationError(f"{name!r} cannot be a producer's name: use letters, digits, '_', '-' and '.'")
        if name in self._secrets:
            raise DeclarationError(f"producer {name!r} is given twice. Give one of them another name")
        if not (producer.keys or producer.secrets or producer.certificates):
            raise DeclarationError(f"producer {name!r} has no credentials: give it keys, secrets or certificates")
        self._secrets[name] = list(producer.secrets)
        for key in producer.keys:
            if not _HASH.fullmatch(key):
                raise DeclarationError(
                    f"an entry in keys of producer {name!r} is not the hash of a key. Write its hash, such as "
                    f"{HASH_PREFIX}9f86d0…, never the key itself: stagepost gateway --new-key prints both"
                )
            self._put(self._keys, key, name, "key")
        if any(len(secret.encode()) < SECRET_BYTES_MIN for secret in producer.secrets):
            raise DeclarationError(f"a secret of producer {name!r} is shorter than {SECRET_BYTES_MIN} bytes")
        if producer.certificates and not has_proxy:
            raise DeclarationError(
                f"producer {name!r} has certificates, but no proxy is named that checks them: add the table proxy "
                "with addresses and header"
            )
        for subject in producer.certificates:
            self._put(self._subjects, subject, name, "certificate")

    def _put(self, table: dict[str, str], credential: str, name: str, what: str) -> None:
        if table.setdefault(credential, name) != name:
            raise DeclarationError(f"producers {table[credential]!r} and {name!r} have the same {what}")

    def _claim_signed(self, headers: Headers) -> Claimed:
        timestamp = headers.get(TIMESTAMP_HEADER, "")
        if not _TIMESTAMP.fullmatch(timestamp):
            raise _invalid(f"the header {TIMESTAMP_HEADER} must have the seconds since 1970")
        return Claimed(headers.get(PRODUCER_HEADER, ""), headers[SIGNATURE_HEADER], timestamp)

    def _of_key(self, authorization: str) -> str:
        scheme, _, key = authorization.partition(" ")
        presented = hash_of_key(key.strip())
        # The table is searched by a hash that no caller can steer.
        for known, name in self._keys.items():
            if hmac.compare_digest(known, presented) and scheme.lower() == "bearer":
                return name
        raise _invalid("the key belongs to no producer")

    def _is_proxy(self, client: str | None) -> bool:
        try:
            address = ip_address(client or "")
        except ValueError:
            return False
        return any(address in network for network in self._proxies)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise DeclarationError(f"{text!r} is no address or network of a proxy: {error}") from error


def _invalid(detail: str) -> Problem:
    return Problem("credentials-invalid", detail, headers={"WWW-Authenticate": "Bearer"})
