"""URLs as logs, commands and errors may show them: the one place that takes out what is secret."""

from __future__ import annotations

import re

from stagepost.flow.texts import one_line

_HOST = re.compile(r"(?:\[[^\]]*\]|[^:@]*)(?::\d*)?")
HIDDEN = "…"


def shown_url(url: str) -> str:
    """Without password and without parameters, which may hold one.

    All before the last ``@`` is taken for user and password: a password may hold ``/``, ``?`` and ``@`` that its owner
    did not spell with %-signs. So may one whose ``@`` was forgotten, which then stands where the port is.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        # Nothing of a URL's shape: a file's name perhaps, or a driver's own "password=… host=…".
        return HIDDEN if {"=", "@"} & set(url) else one_line(url)
    if scheme == "sqlite":
        return one_line(url)
    credentials, at, place = rest.rpartition("@")
    user = credentials.partition(":")[0].partition("/")[0]
    hosts, slash, path = place.partition("?")[0].partition("/")
    shown = ",".join(each if _HOST.fullmatch(each) else HIDDEN for each in hosts.split(","))
    return one_line(f"{scheme}://{user}{at}{shown}{slash}{path}")
