"""The declaration of a stage whose data is a document: its store, its key, and the place of the processed ids."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, TypeVar

import msgspec

from stagepost.flow.errors import DeclarationError, IllegalCall
from stagepost.flow.plain_json import encode_plain
from stagepost.ports.documents import DocumentStore

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE = "__stagepost_document__"
IDS_MAX = 100
STORE_METHODS = ("read", "write", "keep", "lists", "drop")

# By stage and message id: the token of the attempt that wrote the document, and the flow.
ProcessedIds = dict[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class DocumentRule:
    """The place of a message's document, and the place of the processed ids in it.

    ``key``      the key, with fields of the message: ``account:{account}``
    ``ids``      the names of the fields that lead to the processed ids, outermost first
    ``ids_max``  the document takes no further message while so many ids in it are still needed
    """

    store: DocumentStore
    key: str
    ids: tuple[str, ...]
    ids_max: int

    def key_of(self, message: Any) -> str:
        return self.key.format(**{name: getattr(message, name) for name in _fields(self.key)})

    def split(self, body: bytes) -> tuple[dict[str, Any], ProcessedIds]:
        """Return the document without its processed ids, and these ids."""
        document: dict[str, Any] = msgspec.json.decode(body) if body else {}
        inner = document
        for name in self.ids[:-1]:
            inner = self._inner(inner, name)
        return document, msgspec.convert(inner.pop(self.ids[-1], {}), ProcessedIds)

    def joined(self, document: dict[str, Any], ids: ProcessedIds) -> bytes:
        """Return the bytes of a document with its processed ids.

        Raises ``IllegalCall`` if their place is taken, or if the document is not one of JSON values.
        """
        encode_plain("the document that the handler wrote", document)
        whole = dict(document)
        inner = whole
        for name in self.ids[:-1]:
            inner[name] = dict(self._inner(inner, name))
            inner = inner[name]
        if self.ids[-1] in inner:
            raise IllegalCall(
                f"the handler wrote {'.'.join(self.ids)} into the document, where Stagepost keeps the processed ids. "
                "Name another field in ids=."
            )
        inner[self.ids[-1]] = ids
        return msgspec.json.encode(whole)

    def _inner(self, document: dict[str, Any], name: str) -> dict[str, Any]:
        """Return a part of the document that leads to the ids. Raises ``IllegalCall`` if another value is there."""
        inner = document.get(name, {})
        if not isinstance(inner, dict):
            raise IllegalCall(
                f"the document has {inner!r:.100} at {name}, which must be an object, because "
                f"ids={'.'.join(self.ids)!r} is in it. Name another field in ids=."
            )
        return inner


def in_document(store: DocumentStore, *, key: str, ids: str, ids_max: int = IDS_MAX) -> Callable[[F], F]:
    """Declare that the data of a handler's messages is one document. Put it directly above the handler.

    ``key``      the document's key, with fields of the message in braces: ``account:{account}``
    ``ids``      the field of the document for the processed ids, with dots for an inner one: ``meta.processed``
    ``ids_max``  the bound on ids that are still needed: further messages for the document are put off

    The handler reads and changes ``ctx.document``, a dict of JSON values. Raises ``DeclarationError``.
    """
    for name, value in (("key", key), ("ids", ids)):
        if not isinstance(value, str) or not value:
            raise DeclarationError(f"{name} of in_document must be a text, not {value!r}")
    if isinstance(ids_max, bool) or not isinstance(ids_max, int) or ids_max < 1:
        raise DeclarationError(f"ids_max of in_document must be a whole number above 0, not {ids_max!r}")
    if not all(ids.split(".")):
        raise DeclarationError(f"ids={ids!r} of in_document has an empty name: write ids='meta.processed'")
    if not all(callable(getattr(store, each, None)) for each in STORE_METHODS):
        raise DeclarationError(
            f"{store!r:.100} is no store of documents, with the methods {', '.join(STORE_METHODS)}. Give "
            "RedisDocuments or MemoryDocuments, or a store of your own."
        )
    if not all(each.isidentifier() for each in _fields(key)):
        raise DeclarationError(
            f"key={key!r} of in_document may hold fields of the message alone: 'account:{{account}}'"
        )
    rule = DocumentRule(store, key, tuple(ids.split(".")), ids_max)

    def declare(function: F) -> F:
        if not inspect.isfunction(function):
            raise DeclarationError(
                f"@in_document is above {function!r:.100}, which is no handler: put it directly above the "
                "function, below @app.endpoint"
            )
        setattr(function, ATTRIBUTE, rule)
        return function

    return declare


def rule_of(
    place: str, function: Callable[..., Any], message_type: type, *, batch: int, is_guarded: bool
) -> DocumentRule | None:
    """Return the rule of a handler; None if its data is in the database. Raises ``DeclarationError``."""
    rule: DocumentRule | None = getattr(function, ATTRIBUTE, None)
    if rule is None:
        return None
    known = [name for each in reversed(message_type.__mro__) for name in inspect.get_annotations(each)]
    for name in _fields(rule.key):
        if name not in known:
            raise DeclarationError(
                f"{place} has the document {rule.key!r}, and {message_type.__qualname__} has no field {name!r}. It "
                f"has: {', '.join(known)}."
            )
    if is_guarded:
        raise DeclarationError(
            f"{place} has a document, and a guard= or key=, whose row is in the database. The ids in the document "
            "are its guard: leave guard= and key= out, or check the key in a stage before it."
        )
    if batch > 1:
        raise DeclarationError(
            f"{place} has batch={batch}, and its messages write documents, each in a transaction of its own. Leave "
            "batch= out."
        )
    return rule


def check_alone(place: str, rules: Mapping[str, DocumentRule | None]) -> None:
    """Check the handlers of one message type. Raises ``DeclarationError`` if a document has more than one."""
    if len(rules) > 1 and any(rules.values()):
        raise DeclarationError(
            f"{place} has several handlers of one message type ({', '.join(rules)}), and one of them has a document. "
            "Give the others an endpoint of their own."
        )


def _fields(key: str) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(key) if name is not None]
