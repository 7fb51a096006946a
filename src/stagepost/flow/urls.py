"""Find secrets in URLs, and remove them from the URLs that logs, commands and errors show."""

from __future__ import annotations

import re

from stagepost.flow.texts import one_line

_HOST = re.compile(r"(?:\[[^\]]*\]|[^:@]*)(?::\d*)?")
_PASSWORD_PARAMETER = re.compile(r"[?&](?:ssl)?password=[^&]", re.IGNORECASE)
HIDDEN = "…"


def has_password(url: str) -> bool:
    """Return whether a URL contains a password: between the user and the host, or as a parameter."""
    _, _, rest = url.partition("://")
    credentials, _, _ = rest.rpartition("@")
    _, _, password = credentials.partition(":")
    return bool(password) or bool(_PASSWORD_PARAMETER.search(url))


def shown_url(url: str) -> str:
    """Return a URL without its password, and without its parameters, which may contain one.

    Everything before the last ``@`` counts as user and password, because a password may contain ``/``, ``?`` and ``@``
    that are not percent-encoded. If the ``@`` is missing, the password is in the place of the port, and is hidden too.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        # Without a scheme the text may be a file's name, or a driver's own "password=… host=…".
        return HIDDEN if {"=", "@"} & set(url) else one_line(url)
    if scheme == "sqlite":
        return one_line(url)
    credentials, at, place = rest.rpartition("@")
    user = credentials.partition(":")[0].partition("/")[0]
    hosts, slash, path = place.partition("?")[0].partition("/")
    shown = ",".join(each if _HOST.fullmatch(each) else HIDDEN for each in hosts.split(","))
    return one_line(f"{scheme}://{user}{at}{shown}{slash}{path}")
