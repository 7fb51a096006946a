"""The headers of a delivery as a CloudEvent 1.0 in binary mode."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

# The printable characters that a header of a CloudEvent holds as they are: all but the blank, '"' and '%'.
PLAIN = "".join(chr(each) for each in range(0x21, 0x7F) if chr(each) not in '"%')


def event_headers(attributes: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes as headers, percent-encoded as the HTTP binding says. ``defaults`` fill in absent ones."""
    merged = {"specversion": "1.0", **defaults, **attributes}
    # The body's type is the header Content-Type.
    merged.pop("datacontenttype", None)
    return {f"ce-{name}": quote(value, safe=PLAIN) for name, value in merged.items()}
