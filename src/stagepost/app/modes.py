"""Which demarcation mode a stage runs in, and which cannot keep their promise where the queue is."""

from __future__ import annotations

from collections.abc import Mapping

from stagepost.app.settings import is_postgres
from stagepost.flow.errors import DeclarationError
from stagepost.transaction.stage import Mode, Stage

MODES: tuple[Mode, ...] = ("single", "outbox", "two_phase")
# For what carries envelopes without being a database, and so for none that there is.
FOR_BROKERS = ("best_effort", "transport")


def check_mode(mode: object) -> Mode:
    """Raises ``DeclarationError``, when the stage is declared."""
    for each in MODES:
        if mode == each:
            return each
    if mode in FOR_BROKERS:
        raise DeclarationError(
            f"demarcation={mode!r} is for a broker. Over a database {_or(MODES)} are stronger: leave it out for the "
            "one that suits."
        )
    raise DeclarationError(f"demarcation={mode!r} is none of the modes: {_or(MODES)}")


def modes_over(stages: Mapping[str, Stage], database: str, transport: str | None) -> dict[str, Mode]:
    """Of each stage, by its address. Raises ``DeclarationError``."""
    can_prepare = transport is not None and is_postgres(transport) and is_postgres(database)
    return {
        address: _mode_of(stage, is_elsewhere=transport is not None, can_prepare=can_prepare)
        for address, stage in stages.items()
    }


def _mode_of(stage: Stage, *, is_elsewhere: bool, can_prepare: bool) -> Mode:
    """``is_elsewhere``: the queue is in another database than the stages' data; ``can_prepare``: both are PostgreSQL.

    Raises ``DeclarationError``.
    """
    if not is_elsewhere:
        if stage.demarcation not in (None, "single"):
            raise DeclarationError(
                f"{stage.address} ({stage.declared_at}) has demarcation={stage.demarcation!r}, but its queue is in the "
                "database of its data, where single is stronger and cheaper. Leave it out, or name the queue's "
                "database with transport=."
            )
        return "single"
    if stage.batch > 1:
        raise DeclarationError(
            f"{stage.address} ({stage.declared_at}) has batch={stage.batch}, but its queue is in another database than "
            "its data, and only the mode single shares a transaction. Leave it out there."
        )
    if stage.demarcation == "single":
        raise DeclarationError(
            f"{stage.address} ({stage.declared_at}) has demarcation='single', but transport= names another database "
            "than its data's: one commit cannot have both. Leave it out for outbox, or use two_phase, both on "
            "PostgreSQL."
        )
    if stage.demarcation == "two_phase" and not can_prepare:
        raise DeclarationError(
            f"{stage.address} ({stage.declared_at}) has demarcation='two_phase', which both databases must be "
            "PostgreSQL for. Leave it out for outbox."
        )
    return stage.demarcation or "outbox"


def _or(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
