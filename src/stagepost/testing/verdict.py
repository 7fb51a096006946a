"""Say in plain words which effects a crash lost or doubled, and name the likely cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stagepost.testing.effects import Difference
from stagepost.transaction.steps import STEPS, Step

# A longer list of effects would hide the cause.
EFFECTS_MAX = 5
# The work is committed at these steps.
_COMMITTED = {
    step for steps in STEPS.values() if Step.COMMITTED in steps for step in steps[steps.index(Step.COMMITTED) :]
}
DUPLICATE_KEY = ("unique", "duplicate key", "duplicate entry")

OUTSIDE = (
    "an effect outside the stage's transaction. The crash rolled the transaction back, and the effect stayed: a "
    "call to another service, a connection of the handler's own, or a file. Write through ctx.sql or "
    "ctx.connection, or make the call in a stage of its own, under an id that the other service recognises."
)
AFTER_COMMIT = (
    "an effect after the commit, which runs at most once: a callback of ctx.after_commit, or success() of a sink. "
    "Send a message with ctx.send in its place, because the message commits with the work."
)
REMEMBERED = (
    "the handler remembers outside its transaction that it ran: in a variable, a file or another database. Its "
    "second attempt therefore does nothing. Keep that memory in a table, and write it through ctx.sql."
)
RECOGNISED = (
    "the work was committed, and the message came again without being recognised. Let the handler insert under an "
    "id of the message, with ON CONFLICT DO NOTHING."
)
SERVER_MADE = (
    "a server-made id: a sequence, AUTOINCREMENT, or uuid4() in the handler. Each attempt makes another id, so "
    "the second row is not recognised as the first. Take the id from the message or from ctx.message_id, and "
    "insert with ON CONFLICT DO NOTHING."
)
RENAMED = (
    "a server-made id. The effect exists once, under another id than in the run without a crash, because a "
    "sequence also counts attempts that are rolled back. Leave the id out of the compared effects, or take it "
    "from the message."
)
KEY_EXISTS = (
    "an insert outside the stage's transaction. The second attempt met the row of the first one. Insert through "
    "ctx.sql, or with ON CONFLICT DO NOTHING."
)
AFFECTED_ROWS = (
    "a check of the number of affected rows, outside the stage's transaction. The first attempt made the change, "
    "so the second one finds no row to change and fails. Change the row through ctx.sql, or accept a change that "
    "was made before."
)
UNSTEADY = (
    "an effect that depends on the time, on chance or on the number of the attempt. Derive it from the message, "
    "from ctx.message_id or from ctx.started_at."
)


def verdict(difference: Difference, step: Step, failures: Sequence[str]) -> str:
    """Return the changed effects and the likely cause. ``failures`` are those of attempts after the crash."""
    changes = list(_changes(difference))
    further = f" and {len(changes) - EFFECTS_MAX} more" if len(changes) > EFFECTS_MAX else ""
    failed = f" An attempt after the crash failed: {failures[0]}." if failures else ""
    return (
        f"{', '.join(changes[:EFFECTS_MAX])}{further}.{failed} Likely cause: {likely_cause(difference, step, failures)}"
    )


def likely_cause(difference: Difference, step: Step, failures: Sequence[str]) -> str:
    if failures:
        return KEY_EXISTS if any(each in failures[0].lower() for each in DUPLICATE_KEY) else AFFECTED_ROWS
    if difference.again:
        return SERVER_MADE
    if difference.doubled:
        return RECOGNISED if step in _COMMITTED else OUTSIDE
    if difference.lost and not difference.new:
        return AFTER_COMMIT if step in _COMMITTED else REMEMBERED
    if difference.renamed and not difference.new:
        return RENAMED
    return UNSTEADY


def _changes(difference: Difference) -> Iterator[str]:
    for effect, count, expected in difference.doubled:
        yield f"doubled {effect} (found {times(count)}, expected {times(expected)})"
    for effect, twin in difference.again:
        yield f"doubled {twin} (found again as {effect})"
    for effect, count, expected in difference.lost:
        yield f"lost {effect} (found {times(count)}, expected {times(expected)})"
    for effect, twin in difference.renamed:
        yield f"changed {twin} to {effect}"
    for effect in difference.new:
        yield f"added {effect} (not expected)"


def times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")
