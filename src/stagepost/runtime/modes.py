"""The transaction mode of each stage, and the check that its databases can keep the mode's promise."""

from __future__ import annotations

from collections.abc import Mapping

from stagepost.flow.errors import DeclarationError
from stagepost.ports.registry import driver_of, require
from stagepost.transaction.stage import Mode, Stage

MODES: tuple[Mode, ...] = ("single", "outbox", "two_phase")
# The modes for a message broker. Every queue is in a database today, so no stage can have them.
FOR_BROKERS = ("best_effort", "transport")
APART = "A queue in another database needs it here: leave queue= out."


def check_mode(mode: object) -> Mode:
    """Check a mode when its stage is declared. Raises ``DeclarationError``."""
    for each in MODES:
        if mode == each:
            return each
    if mode in FOR_BROKERS:
        raise DeclarationError(
            f"mode={mode!r} is for a broker. With a queue in a database, {_or(MODES)} are stronger: leave it out for "
            "the default."
        )
    raise DeclarationError(f"mode={mode!r} is not a mode: the modes are {_or(MODES)}")


def modes_over(stages: Mapping[str, Stage], database: str, queue: str | None) -> dict[str, Mode]:
    """Return each stage's mode by its address. Raises ``CapabilityMissing`` and ``DeclarationError``."""
    can_prepare = False
    if queue is not None:
        require(database, "inbox", APART)
        require(database, "outbox", APART)
        can_prepare = "decisions" in driver_of(database).capabilities and "prepare" in driver_of(queue).capabilities
    for address, stage in stages.items():
        if stage.pause_after:
            require(queue or database, "circuits", f"{address} ({stage.declared_at}) needs it: set pause_after=0.")
    return {
        address: _mode_of(stage, is_elsewhere=queue is not None, can_prepare=can_prepare)
        for address, stage in stages.items()
    }


def _mode_of(stage: Stage, *, is_elsewhere: bool, can_prepare: bool) -> Mode:
    """Return the mode of a stage. Raises ``DeclarationError``.

    ``is_elsewhere`` says that the queue is in another database than the stages' data, ``can_prepare`` that the
    two databases can commit together.
    """
    if not is_elsewhere:
        if stage.mode not in (None, "single"):
            raise DeclarationError(
                f"{stage.address} ({stage.declared_at}) has mode={stage.mode!r}, but its queue is in the "
                "database of its data, where single is stronger and cheaper. Leave it out, or name the queue's "
                "database with queue=."
            )
        return "single"
    if stage.batch > 1:
        raise DeclarationError(
            f"{stage.address} ({stage.declared_at}) has batch={stage.batch}, but its queue is in another database than "
            "its data, and only the mode single shares a transaction. Leave it out there."
        )
    if stage.mode == "single":
        raise DeclarationError(
            f"{stage.address} ({stage.declared_at}) has mode='single', but queue= names another database than its "
            "data's: one commit cannot have both. Leave it out for outbox, or use two_phase with both on PostgreSQL."
        )
    if stage.mode == "two_phase" and not can_prepare:
        raise DeclarationError(
            f"{stage.address} ({stage.declared_at}) has mode='two_phase', which needs PostgreSQL for both databases. "
            "Leave it out for outbox."
        )
    return stage.mode or "outbox"


def _or(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
