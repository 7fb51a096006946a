"""Connect only to addresses that were checked, so that a delivery never reaches a private network by accident.

The name is resolved once for each connection. The address that was checked is the one that is connected to, so a name
that resolves differently the next time changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Collection, Iterable, Sequence

import httpcore2

from stagepost.flow.errors import StagepostError

# Networks whose addresses hold an address of IPv4, and the place of its first bit from the right.
EMBEDDING = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("64:ff9b:1::/48"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
    (ipaddress.IPv6Network("::/96"), 0),
)

Resolve = Callable[[str, int], Sequence[str]]


class AddressRefused(StagepostError):
    """A consumer's name resolves to addresses that the gateway does not connect to."""

    code = "address-refused"


def is_public(address: str) -> bool:
    """Say whether an address is one of the public internet. A text that is no address is not."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.is_site_local:
            # Python counts these old private networks as global.
            return False
        for network, shift in EMBEDDING:
            if found in network:
                found = ipaddress.IPv4Address((int(found) >> shift) & 0xFFFF_FFFF)
                break
    return found.is_global and not found.is_multicast and not found.is_reserved


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name, in the order of the system's preference. Raises ``OSError``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class CheckedNetwork(httpcore2.NetworkBackend):
    """Implements ``httpcore2.NetworkBackend``.

    ``private``    the hosts that may be on a private network, by name
    ``remaining``  returns the seconds that the present request of this thread has left

    A time-out of the client bounds one read. A consumer that sends a byte now and then would hold a thread for hours,
    so each wait here also ends with the whole request's time.
    """

    def __init__(
        self, private: Collection[str], remaining: Callable[[], float], resolve_name: Resolve = resolve
    ) -> None:
        self._private = frozenset(private)
        self._remaining = remaining
        self._resolve = resolve_name
        self._network = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connect to the first address that answers. Raises ``AddressRefused`` and ``httpcore2.ConnectError``."""
        failed: Exception = httpcore2.ConnectError("it has no address")
        for address in self._checked(host, port):
            try:
                stream = self._network.connect_tcp(address, port, self._bounded(timeout), local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
            else:
                return TimedStream(stream, self._bounded)
        raise failed

    def _checked(self, host: str, port: int) -> list[str]:
        try:
            addresses = self._resolve(host, port)
        except OSError as error:
            raise httpcore2.ConnectError(f"its name cannot be resolved: {error}") from None
        except UnicodeError as error:
            raise httpcore2.ConnectError(f"its name is none: {error}") from None
        if host in self._private:
            return list(addresses)
        public = [each for each in addresses if is_public(each)]
        if addresses and not public:
            raise AddressRefused(
                f"{host} resolves to {addresses[0]}, which is not on the public internet. If it is meant, name the "
                "host in allow_private."
            )
        return public

    def _bounded(self, timeout: float | None) -> float:
        remaining = self._remaining()
        return max(remaining if timeout is None else min(timeout, remaining), 0.001)


class TimedStream(httpcore2.NetworkStream):
    """A stream whose waits end with the time of the whole request."""

    def __init__(self, stream: httpcore2.NetworkStream, bounded: Callable[[float | None], float]) -> None:
        self._stream = stream
        self._bounded = bounded

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._bounded(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._bounded(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return TimedStream(self._stream.start_tls(ssl_context, server_hostname, self._bounded(timeout)), self._bounded)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)
