"""A stage as it was declared: its handlers, and the checks of them against each other and the stage's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagepost.app.effects import check_calls, effects_named_by
from stagepost.app.signatures import Signature, declared_at
from stagepost.app.terms import Terms
from stagepost.flow.effects import Effect
from stagepost.flow.errors import DeclarationError
from stagepost.transaction.document_rules import DocumentRule, check_alone, rule_of


@dataclass(frozen=True, slots=True)
class DeclaredHandler:
    """A handler as it was declared. ``name`` is None for a stage's own handler."""

    name: str | None
    function: Callable[..., Any]
    signature: Signature


@dataclass(frozen=True, slots=True)
class Declared:
    """A stage as it was declared, before its next stage is known. Its own handler is the first."""

    address: str
    terms: Terms
    handlers: list[DeclaredHandler]

    @property
    def message_types(self) -> tuple[type, ...]:
        return tuple(dict.fromkeys(each.signature.message_type for each in self.handlers))

    @property
    def effects(self) -> tuple[Effect[Any, Any], ...]:
        return tuple(effect for each in self.handlers for effect in effects_named_by(each.function))


def check_added(address: str, handlers: Sequence[DeclaredHandler], added: DeclaredHandler) -> None:
    """Check that a handler can be added to those of a stage. Raises ``DeclarationError``."""
    signature = added.signature
    if any(each.function.__name__ == added.name for each in handlers):
        raise DeclarationError(
            f"{address} has two handlers with the name {added.name!r}. The ids of the messages that they send contain "
            "it, so give one of them another name."
        )
    if signature.is_async != handlers[0].signature.is_async:
        raise DeclarationError(
            f"the handlers of {address} are in part `def` and in part `async def`, which its time limit interrupts in "
            f"different ways. Make {added.name} like the others."
        )
    for each in handlers:
        other = each.signature.message_type
        if other is not signature.message_type and other.__name__ == signature.message_type.__name__:
            raise DeclarationError(
                f"the handlers of {address} take two types with the name {other.__name__}, by which messages find "
                "their handlers. Give one of them another name."
            )
        if other is signature.message_type and each.signature.promises_reply and signature.promises_reply:
            raise DeclarationError(
                f"two handlers of {address} return a reply to each {other.__name__}; its caller waits for one. Let one "
                "of them return it."
            )


def check_together(declared: Declared) -> None:
    """Check what the handlers of a stage use against each other and its terms. Raises ``DeclarationError``."""
    place = declared_at(declared.handlers[0].function)
    has_document = documents_of(declared) is not None
    check_calls(declared.address, place, declared.effects, declared.terms, has_document=has_document)


def documents_of(declared: Declared) -> Mapping[type, DocumentRule | None] | None:
    """Return the rules of a stage's documents by message type. Raises ``DeclarationError``."""
    found: dict[type, dict[str, DocumentRule | None]] = {}
    for each in declared.handlers:
        place = f"{declared.address}, handler {each.function.__name__}"
        terms, message_type = declared.terms, each.signature.message_type
        is_guarded = terms.key is not None or terms.guard not in (None, "none")
        rule = rule_of(place, each.function, message_type, batch=terms.batch, is_guarded=is_guarded)
        found.setdefault(message_type, {})[place] = rule
    for rules in found.values():
        check_alone(declared.address, rules)
    by_type = {message_type: next(iter(rules.values())) for message_type, rules in found.items()}
    if not any(by_type.values()):
        return None
    for each in declared.handlers:
        if each.signature.database_use is not None:
            raise DeclarationError(
                f"{declared.address} has a document, and handler {each.function.__name__} uses "
                f"ctx.{each.signature.database_use}: a crash between the two writes would lose the database's. Send a "
                "message to a stage that writes there."
            )
    return by_type
