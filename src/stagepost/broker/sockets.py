"""Open a connection's socket: to one host, with or without TLS, and with a deadline."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from stagepost.broker.url import BrokerUrl, Host
from stagepost.flow.errors import BrokerDenied, BrokerUnavailable, DeclarationError

# The parameters of a URL over TLS: PEM files of the trusted authorities, of the client's certificate and of its key.
TLS_PARAMETERS = frozenset({"cafile", "certfile", "keyfile"})


def tls_context(url: BrokerUrl) -> ssl.SSLContext:
    """Return the settings of TLS: the broker's certificate and host name are checked. Raises ``DeclarationError``."""
    files = {name: url.parameters.get(name) for name in sorted(TLS_PARAMETERS)}
    for name, path in files.items():
        if path is not None and not Path(path).is_file():
            raise DeclarationError(f"{url.shown}: the file {path} of the parameter {name} does not exist.")
    if files["keyfile"] and not files["certfile"]:
        raise DeclarationError(f"{url.shown}: the parameter keyfile needs the parameter certfile.")
    try:
        context = ssl.create_default_context(cafile=files["cafile"])
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if files["certfile"]:
            context.load_cert_chain(files["certfile"], files["keyfile"])
    except ssl.SSLError as error:
        raise DeclarationError(f"{url.shown}: a file of its TLS parameters is no PEM file ({error}).") from error
    return context


def open_socket(host: Host, tls: ssl.SSLContext | None, seconds: float) -> socket.socket:
    """Connect. The socket's time-out is left at ``seconds``.

    Raises ``BrokerUnavailable``, or ``BrokerDenied`` for a certificate that is not trusted.
    """
    try:
        plain = socket.create_connection(host, timeout=seconds)
    except OSError as error:
        raise BrokerUnavailable(f"no connection: {error}") from error
    try:
        # Frames are small, and each one may be waited for.
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return plain if tls is None else tls.wrap_socket(plain, server_hostname=host.name)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise BrokerDenied(
            f"the broker at {host} shows a certificate that is not trusted ({error.verify_message}). Name its "
            "authority in the parameter cafile of the broker URL, and the host as the certificate does."
        ) from error
    except OSError as error:
        plain.close()
        raise BrokerUnavailable(f"TLS failed: {error}") from error
