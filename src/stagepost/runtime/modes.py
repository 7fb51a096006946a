"""The transaction mode of each stage, and the check that its databases can keep the mode's promise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from stagepost.flow.effects import Effect
from stagepost.flow.errors import DeclarationError
from stagepost.ports.broker import BrokerFeatures
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.ports.registry import Capability, driver_of, require
from stagepost.transaction.sent_marks import CLEARINGS
from stagepost.transaction.stage import DIRECT, EFFECTS_NEED, Mode, Stage

MODES: tuple[Mode, ...] = ("single", "outbox", "two_phase", "best_effort", "transport")
# RabbitMQ closes the channel of a delivery that is unsettled for 30 minutes.
RABBITMQ_SECONDS_MAX = 25 * 60.0
NEEDED = "An app with a broker needs it: use SQLite or PostgreSQL, or leave broker= out."
NAME_AT_BROKER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}")
APART = "A queue in another database needs it here: leave queue= out."


def check_mode(mode: object) -> Mode:
    """Check a mode when its stage is declared. Raises ``DeclarationError``."""
    for each in MODES:
        if mode == each:
            return each
    raise DeclarationError(f"mode={mode!r} is not a mode: the modes are {_or(MODES)}")


def modes_over(
    stages: Mapping[str, Stage], database: str, queue: str | None, *, has_broker: bool = False
) -> dict[str, Mode]:
    """Return each stage's mode by its address. Raises ``CapabilityMissing`` and ``DeclarationError``."""
    can_prepare = False
    if queue is not None:
        require(database, "inbox", APART)
        require(database, "outbox", APART)
        can_prepare = "decisions" in driver_of(database).capabilities and "prepare" in driver_of(queue).capabilities
    for address, stage in stages.items():
        if stage.pause_after:
            require(queue or database, "circuits", f"{address} ({stage.declared_at}) needs it: set pause_after=0.")
    if any(is_guarded_directly(stage, stage.mode) for stage in stages.values()):
        require(database, "inbox", "A guard in best_effort needs it: leave guard= and key= out.")
    if any(stage.keys for stage in stages.values()):
        require(database, "business_keys", "A stage with key= needs it: leave key= out.")
    return {
        address: _guarded_mode_of(stage, is_elsewhere=queue is not None, can_prepare=can_prepare, has_broker=has_broker)
        for address, stage in stages.items()
    }


def check_clearing(app: str, clearing: object, queue: str | None) -> None:
    """Check how the stored bytes of an app are cleared. Raises ``DeclarationError``."""
    if clearing not in CLEARINGS:
        raise DeclarationError(f"clearing={clearing!r} of app {app!r} is not one of {_or(CLEARINGS)}")
    if clearing != "worker" and queue is None:
        raise DeclarationError(
            f"app {app!r} has clearing={clearing!r}, and its queue is in the database of its data, where no bytes are "
            "stored. Leave it out, or name the queue's database with queue=."
        )


def check_edge(stages: Mapping[str, Stage], broker: str | None, store: str, *, is_local: bool) -> None:
    """Check that the app and its store suit the broker. Opens nothing. Raises ``DeclarationError``.

    ``store`` is the URL of the queue's database.
    """
    if broker is None:
        if not is_local:
            raise DeclarationError(
                "local=False sends every message over the broker, and the app has none. Name one with broker=, "
                "STAGEPOST_BROKER or stagepost.toml, or leave local= out."
            )
        return
    broker_driver_of(broker)
    capabilities: tuple[Capability, ...] = ("circuits", "declarations", "edge")
    for each in capabilities:
        require(store, each, NEEDED)
    for address, stage in stages.items():
        if not NAME_AT_BROKER.fullmatch(address):
            raise DeclarationError(
                f"{address} ({stage.declared_at}) cannot be an address at a broker: it must begin with a letter, and "
                "have at most 200 letters, digits, '_', '-' and '.'. Give the endpoint, or the stage's function, "
                "another name."
            )


def _guarded_mode_of(stage: Stage, *, is_elsewhere: bool, can_prepare: bool, has_broker: bool) -> Mode:
    """Return the mode of a stage whose guard has something to do. Raises ``DeclarationError``."""
    mode = _mode_of(stage, is_elsewhere=is_elsewhere, can_prepare=can_prepare, has_broker=has_broker)
    if mode not in ("outbox", "best_effort") and stage.guards and not stage.keys:
        guards = " and ".join(sorted(set(stage.guards.values())))
        raise DeclarationError(
            f"{stage.address} ({stage.declared_at}) has the guard {guards}, but in mode {mode} its queue row is the "
            "guard of its message, and no copy of it can run. Leave it out, or name a business key with key=."
        )
    return mode


def is_guarded_directly(stage: Stage, mode: Mode | None) -> bool:
    """Say whether a stage consumes from the broker directly, and has inbox rows of what it handled."""
    return mode == "best_effort" and stage.is_guarded


def check_effects(
    declared: Mapping[str, Effect[Any, Any]], stages: Mapping[str, Stage], modes: Mapping[str, Mode], store: str
) -> None:
    """Check the stages that call effects, and their store. Raises ``CapabilityMissing`` and ``DeclarationError``.

    ``declared`` are the app's effects by their names. ``store`` is the URL of the queue's database.
    """
    if declared:
        require(store, "effects", "The app declares effects, which need it.")
    for address, stage in stages.items():
        for each in stage.effects:
            if declared.get(each.name) is not each:
                raise DeclarationError(
                    f"{address} ({stage.declared_at}) calls the effect {each.name} of another app "
                    f"({each.declared_at}), which alone could undo it. Declare it with this one too: "
                    f"app.effect({each.name!r}, call=…)."
                )
        if not stage.effects or may_call_effects(stage, modes[address]):
            continue
        if stage.undoes is not None:
            raise DeclarationError(
                f"no stage can call the effect {stage.undoes} ({stage.declared_at}): the app's queue is in another "
                "database than its data, and both must be on PostgreSQL to commit together. Leave queue= out, or put "
                "both on PostgreSQL and call the effect in a stage of mode='two_phase'."
            )
        batch = f" and batch={stage.batch}" if stage.batch > 1 else ""
        key = " and a business key: check the key in one stage, and call in the next" if stage.keys else ""
        raise DeclarationError(
            f"{address} ({stage.declared_at}) calls the effect {stage.effects[0].name}, and it has the mode "
            f"{modes[address]}{batch}{key}. {EFFECTS_NEED}"
        )


def may_call_effects(stage: Stage, mode: Mode) -> bool:
    return mode in ("single", "two_phase") and stage.batch == 1 and not stage.keys


def _mode_of(stage: Stage, *, is_elsewhere: bool, can_prepare: bool, has_broker: bool) -> Mode:
    """Return the mode of a stage. Raises ``DeclarationError``.

    ``is_elsewhere`` says that the queue is in another database than the stages' data, ``can_prepare`` that the
    two databases can commit together. Behind a broker a stage of one database is in ``single``, and ``outbox`` names
    the same there.
    """
    if stage.documents is not None and (is_elsewhere or stage.mode not in (None, "single")):
        raise DeclarationError(
            f"{stage.address} ({stage.declared_at}) has a document, and its queue is in another database than the "
            "app's own, or it has another mode than single. A document takes the place of the app's database: leave "
            "queue= and mode= out."
        )
    if stage.mode in DIRECT:
        return _direct_mode_of(stage, is_elsewhere=is_elsewhere, has_broker=has_broker)
    if not is_elsewhere:
        if stage.mode not in (None, "single") and not (has_broker and stage.mode == "outbox"):
            raise DeclarationError(
                f"{stage.address} ({stage.declared_at}) has mode={stage.mode!r}, but its queue is in the "
                "database of its data, where single is stronger and cheaper. Leave it out, or name the queue's "
                "database with queue=."
            )
        return "single"
    if stage.undoes is not None:
        return "two_phase" if can_prepare else "outbox"
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


def _direct_mode_of(stage: Stage, *, is_elsewhere: bool, has_broker: bool) -> Mode:
    """Return the direct mode of a stage. Raises ``DeclarationError``."""
    assert stage.mode is not None
    named = f"{stage.address} ({stage.declared_at}) has mode={stage.mode!r}"
    if not has_broker:
        raise DeclarationError(
            f"{named}, which consumes from a broker, and the app has none. Name one with broker=, STAGEPOST_BROKER or "
            "stagepost.toml, or leave mode= out: in one database single is stronger and cheaper."
        )
    if is_elsewhere:
        raise DeclarationError(
            f"{named}, which consumes from the broker, and queue= names a database for the messages. Leave queue= out, "
            "or use outbox, which needs no broker transaction."
        )
    if stage.batch > 1:
        raise DeclarationError(
            f"{named} and batch={stage.batch}, but each delivery is settled with its own commit. Leave batch= out, or "
            "use mode='outbox', where messages share a transaction."
        )
    if stage.redelivery.blocking:
        raise DeclarationError(
            f"{named} and a blocking redelivery, but a failed delivery is stored, and its thread goes on. Leave "
            "blocking= out, or use mode='outbox', whose stages run from the store."
        )
    if stage.mode == "transport" and (stage.keys or stage.guards):
        raise DeclarationError(
            f"{named} and a guard or a business key, whose row no transaction of the database would commit: the "
            "broker alone commits there. Leave key= and guard= out, or use mode='best_effort'."
        )
    return stage.mode


def check_starts(app: str, broker: str | None, queue: str | None) -> None:
    """Check that flows can start in the mode ``best_effort``. Raises ``DeclarationError``."""
    if broker is None or queue is not None:
        raise DeclarationError(
            f"app {app!r} has mode='best_effort', and so starts flows over a broker. Name one with broker=, and leave "
            "queue= out, or leave mode= out."
        )


def check_direct(stages: Iterable[Stage], modes: Mapping[str, Mode], features: BrokerFeatures) -> None:
    """Check that the connected broker keeps the promises of the direct modes. Raises ``DeclarationError``."""
    product = f"{features.product} {features.version}"
    for stage in stages:
        if modes[stage.address] not in DIRECT:
            continue
        named = f"{stage.address} ({stage.declared_at}) has mode={modes[stage.address]!r}"
        if "artemis" in features.product.lower():
            raise DeclarationError(
                f"{named}, and the broker is {product}, which ignores the transaction of a STOMP acknowledgement and "
                "would lose messages. Use mode='outbox'."
            )
        if features.product == "RabbitMQ" and stage.time_limit_seconds > RABBITMQ_SECONDS_MAX:
            raise DeclarationError(
                f"{named} and time_limit={stage.time_limit_seconds:g}, and {product} takes a delivery back after 30 "
                f"minutes. Give it at most {RABBITMQ_SECONDS_MAX:.0f} s, or use mode='outbox'."
            )


def _or(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
