"""What a failure means to its stage: one more of a streak, the one that makes it pause, or one that is not counted."""

from __future__ import annotations

import logging

from stagepost.flow.claim import Claim
from stagepost.recovery.deadletter import causes_of, describe
from stagepost.recovery.letters import Selection
from stagepost.recovery.pausing import STAGE_REASONS, Pause, Streak, is_provisional
from stagepost.transaction.outcome import Buried, Redelivered, Returned
from stagepost.transaction.post import Post
from stagepost.transaction.reviving import deaths_kept, waypoint_of
from stagepost.transaction.stage import Stage

logger = logging.getLogger(__name__)

Failure = Redelivered | Buried


def weigh(post: Post, stage: Stage, claim: Claim, failure: Failure) -> tuple[Failure | Returned, Streak | None]:
    """Keep it with the stage's streak, in the open transaction; returns what it comes to for the message, and the
    streak where it makes the stage pause.

    What another attempt cannot help is the message's own, and no failure of the stage.
    """
    if not stage.pause_after or (isinstance(failure, Buried) and failure.reason not in STAGE_REASONS):
        return failure, None
    error = describe(causes_of(failure.error)[0])
    streak = post.session.streaks.lock(stage.address)
    if streak.pause is not None:
        return _weigh_paused(post, claim, failure, streak, streak.pause, error), None
    after = _longer(post, claim, streak, error)
    if len(after.messages) < stage.pause_after:
        post.session.streaks.keep(after)
        return failure, None
    after = after.paused(post.clock.now())
    post.session.streaks.keep(after)
    _take_deaths_back(post, stage, after)
    if isinstance(failure, Buried) and is_provisional(failure.reason, claim.failures + 1, stage.redelivery):
        return Redelivered(0, failure.error, failure.ms), after
    return failure, after


def _longer(post: Post, claim: Claim, streak: Streak, error: str) -> Streak:
    streaks = post.session.streaks
    has_succeeded = bool(streak.messages) and streaks.has_succeeded(streak.stage, streak.line)
    line = post.session.reader.last_waypoint()
    return streak.failed(claim.message_id, error, line, has_succeeded=has_succeeded)


def _weigh_paused(
    post: Post, claim: Claim, failure: Failure, streak: Streak, pause: Pause, error: str
) -> Failure | Returned:
    now = post.clock.now()
    is_probe = streak.is_probe(claim.row)
    # A suspect runs alone, whatever its stage does, and so it is a probe of a kind.
    if is_probe or claim.deaths:
        streak = streak.probed_in_vain(error, now)
        post.session.streaks.keep(streak)
    if pause.counts(now):
        return failure
    until = streak.pause.next_probe_at - now if claim.deaths and streak.pause is not None else 0
    what = "a probe of its paused stage failed" if is_probe else "it failed at a paused stage"
    return Returned(max(until, 0), f"{what}: {error}")


def _take_deaths_back(post: Post, stage: Stage, streak: Streak) -> None:
    """What the streak has buried was not its own fault: it gets one more attempt."""
    reader = post.session.reader
    buried = [kept for message_id in streak.messages for kept in reader.letters(Selection("message", message_id))]
    # In the order of their ids, as a replay takes them: two that want the same wait for each other, never in a circle.
    for kept in sorted(buried, key=lambda kept: kept.id):
        letter = kept.letter
        if letter.stage != stage.address or not is_provisional(letter.reason, letter.failures, stage.redelivery):
            continue
        if post.session.exhume(kept.id):
            post.transport.revive(letter, deaths=deaths_kept(letter), failures=letter.failures)
            told = "its stage is paused"
            post.session.record([waypoint_of(letter, "replayed", post.clock.now(), post.node, told)])


def log_pause(streak: Streak) -> None:
    logger.error(
        "%s is paused: %d messages failed one after the other, the last one with: %s. Until one succeeds, they are "
        "tried one at a time",
        streak.stage,
        len(streak.messages),
        streak.error,
        extra={"event": "stage-paused", "stage": streak.stage},
    )
