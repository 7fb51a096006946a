"""The headers of a delivery as a CloudEvent 1.0 in binary mode."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

# The printable characters that a header of a CloudEvent holds as they are: all but the blank, '"' and '%'.
PLAIN = "".join(chr(each) for each in range(0x21, 0x7F) if chr(each) not in '"%')

NAME = re.compile(r"[a-z0-9]+")
CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( ?; ?[A-Za-z0-9-]+=[A-Za-z0-9._-]+)*")
JSON = "application/json"


def content_type(attributes: Mapping[str, str]) -> str:
    """Return the type of the event's data, or that of JSON if it names none that a header can hold."""
    named = attributes.get("datacontenttype", "")
    return named if CONTENT_TYPE.fullmatch(named) else JSON


def event_headers(attributes: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes as headers, percent-encoded as the HTTP binding says. ``defaults`` fill in absent ones."""
    merged = {"specversion": "1.0", **defaults, **attributes}
    # The body's type is the header Content-Type.
    merged.pop("datacontenttype", None)
    return {f"ce-{name}": quote(value, safe=PLAIN) for name, value in merged.items() if NAME.fullmatch(name)}
