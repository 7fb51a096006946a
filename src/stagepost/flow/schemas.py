"""JSON schemas of message types, also of other libraries' types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stagepost.flow.codec import custom_codec


def json_schemas(types: Sequence[type], ref_template: str) -> dict[str, Any]:
    """Return the schemas of these types and of the types in them, by name.

    ``ref_template`` makes a reference of a ``{name}``.
    """
    found: dict[str, Any] = {}

    def refer(declared: type) -> dict[str, Any]:
        custom = custom_codec(declared)
        if custom is None:
            raise NotImplementedError(f"{declared.__qualname__} has no JSON schema")
        found.update(custom.schemas(declared, ref_template))
        return {"$ref": ref_template.format(name=declared.__name__)}

    known = []
    for each in types:
        if custom_codec(each) is None:
            known.append(each)
        else:
            refer(each)
    _, schemas = msgspec.json.schema_components(known, schema_hook=refer, ref_template=ref_template)
    return {**schemas, **found}
