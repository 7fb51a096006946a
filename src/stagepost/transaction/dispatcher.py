"""Publish outbound rows at the broker: claim a window, publish it, and remove the confirmed rows.

The claim is a durable commit of its own, so each message that may have left has its stamp on the disk. The rows that
the broker confirmed are removed in one commit, with the journal's lines. If the process dies between the two, another
dispatcher publishes the rows again. The copies have the same ids, and a receiver recognises them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random

from stagepost.flow.claim import Claim
from stagepost.flow.errors import BrokerConnectionLost, LeaseLost, MaybeSent, MessageOversized
from stagepost.flow.target import OUTBOUND_PREFIX
from stagepost.ports.broker import BrokerConnection, Publication, PublishResult, is_topic
from stagepost.ports.circuits import Probe
from stagepost.ports.dead_letters import DeathReason
from stagepost.recovery.deadletter import undeliverable
from stagepost.recovery.outbound import LOSSES_MAX, is_too_old, pause_after_loss, with_refusal
from stagepost.recovery.pausing import next_end, with_probe
from stagepost.transaction.publication import publication_at
from stagepost.transaction.queue_commit import QueueCommit, committing
from stagepost.transaction.steps import EdgeListener, EdgeStep, unobserved_edge

WINDOW = 100
# A broker that keeps its heart-beats and gives no answer for this long does not take the message for now.
CONFIRM_SECONDS = 30.0
# Messages that are remembered as to go alone. Another dispatcher may have published one, so it would stay here.
ALONE_MAX = 10 * WINDOW

# Answers that count against the destination, in words.
REFUSALS: dict[PublishResult, str] = {
    "unroutable": "no queue takes its messages",
    "refused": "the broker refused a message",
    "unconfirmed": f"the broker confirmed no message within {CONFIRM_SECONDS:g} s",
}

logger = logging.getLogger(__name__)

Answer = tuple[Claim, PublishResult]


class Dispatcher:
    """The dispatcher of one thread. Several may run at once, because each claims the rows that it publishes.

    ``owner``  the incarnation whose claims they are
    ``dispatched``  counts the messages that left
    """

    def __init__(
        self,
        queue_commit: QueueCommit,
        owner: str,
        random: Random,
        listener: EdgeListener = unobserved_edge,
        *,
        confirm_seconds: float = CONFIRM_SECONDS,
    ) -> None:
        self._queue_commit = queue_commit
        self._session = queue_commit.session
        self._clock = queue_commit.clock
        self._owner = owner
        self._random = random
        self._listener = listener
        self._confirm_seconds = confirm_seconds
        self.dispatched = 0
        self._turns = 0
        # Messages whose connection was lost while others were on it too.
        self._alone: set[str] = set()
        # The stamps that the claimed messages had before the claim.
        self._left: dict[str, int] = {}
        self._has_claims = False

    def turn(self, connection: BrokerConnection) -> int:
        """Publish a window of due rows. Returns the number of messages that left or died.

        Claims nothing while the broker takes no publications. Raises ``StoreError``, and ``BrokerConnectionLost`` after
        it has written the answers that came.
        """
        try:
            if self._has_claims:
                # An error broke the last turn off. The rows are claimed again, because memory may be wrong.
                self._release(self._session.queue.owned(self._owner))
            if connection.is_blocked:
                return 0
            claims = self._claim()
            return self._dispatch(connection, claims) if claims else 0
        except BaseException:
            self._session.rollback()
            raise

    def finish(self) -> None:
        """Give back the claims of a turn that was broken off. Raises ``StoreError``."""
        if self._has_claims:
            self._release(self._session.queue.owned(self._owner))

    def _claim(self) -> list[Claim]:
        """Claim up to ``WINDOW`` rows, first of each destination its share, and stamp them."""
        queue = self._session.queue
        destinations = sorted(self._session.edge.destinations())
        now = self._clock.now()
        if not destinations:
            self._alone.clear()
            return []
        if not any(queue.look(destinations, now)):
            return []
        self._turns += 1
        first = self._turns % len(destinations)
        share = max(1, WINDOW // len(destinations))
        self._has_claims = True
        with committing(self._session):
            claims = self._claim_probes(destinations, now)
            busy: list[str] = []
            for stage in [*destinations[first:], *destinations[:first]]:
                if len(claims) >= WINDOW:
                    break
                claimed = queue.claim([stage], min(share, WINDOW - len(claims)), self._owner, now)
                claims += claimed
                busy += [stage] if len(claimed) == share else []
            if busy and len(claims) < WINDOW:
                # Destinations that are paused, or wait for a time, leave their shares to the busy ones.
                claims += queue.claim(busy, WINDOW - len(claims), self._owner, now)
            self._left = self._session.edge.left_at(claims)
            self._session.edge.stamp(claims, now)
        self._listener(EdgeStep.CLAIMED, [each.message_id for each in claims])
        return claims

    def _claim_probes(self, destinations: Sequence[str], now: int) -> list[Claim]:
        """Claim one message of each paused destination whose probe is due."""
        circuits = self._session.circuits
        claims: list[Claim] = []
        for breaker in circuits.due(destinations, now):
            pause = breaker.pause
            assert pause is not None, "only paused destinations are probed"
            if pause.probe is not None and circuits.is_claimed(pause.probe.row):
                continue
            claim = circuits.claim_probe(breaker.stage, self._owner, next_end(pause), now)
            probe = None if claim is None else Probe(claim.row, claim.message_id)
            circuits.keep(with_probe(breaker, pause, probe))
            claims += [] if claim is None else [claim]
        return claims

    def _dispatch(self, connection: BrokerConnection, claims: Sequence[Claim]) -> int:
        now = self._clock.now()
        old = [each for each in claims if is_too_old(self._left.get(each.message_id, now), now)]
        if old:
            self._bury_old(old)
        windows = self._windows([each for each in claims if each not in old])
        done = len(old)
        for number, window in enumerate(windows):
            try:
                results = connection.publish([_publication_of(each) for each in window], self._confirm_seconds)
            except BrokerConnectionLost:
                self._give_back_unwritten([each for rest in windows[number:] for each in rest])
                raise
            self._listener(EdgeStep.PUBLISHED, [each.message_id for each in window])
            done += self._settle(list(zip(window, results, strict=True)))
            if {"lost", "unconfirmed"} & set(results):
                self._give_back_unwritten([each for rest in windows[number + 1 :] for each in rest])
                raise BrokerConnectionLost(f"the connection was lost with {len(window)} messages on it.")
        self._has_claims = False
        return done

    def _windows(self, claims: Sequence[Claim]) -> list[list[Claim]]:
        """Divide the claims: those that may have cost a connection go alone, after all others."""
        alone = [each for each in claims if each.failures or each.message_id in self._alone]
        crowd = [each for each in claims if each not in alone]
        return [*([crowd] if crowd else []), *([each] for each in alone)]

    def _settle(self, answers: Sequence[Answer]) -> int:
        """Write the answers of one window in one commit. Returns the number of messages that left or died."""
        self._listener(EdgeStep.REMOVING, [claim.message_id for claim, _ in answers])
        confirmed = [claim for claim, result in answers if has_left(claim, result)]
        try:
            with committing(self._session):
                self._session.queue.take(*confirmed)
                died = self._write(answers, confirmed)
        except LeaseLost:
            # This process was taken for dead. Another dispatcher may publish what it took over: the ids are the same.
            with committing(self._session):
                confirmed = [each for each in confirmed if self._session.queue.remove(each)]
                died = self._write(answers, confirmed)
        self._listener(EdgeStep.REMOVED, [claim.message_id for claim, _ in answers])
        self.dispatched += len(confirmed)
        self._alone -= {each.message_id for each in confirmed}
        lost = {claim.message_id for claim, result in answers if result == "lost"}
        if len(answers) > 1:
            self._alone = lost if len(self._alone) > ALONE_MAX else self._alone | lost
        return len(confirmed) + died

    def _write(self, answers: Sequence[Answer], confirmed: Sequence[Claim]) -> int:
        """Write everything about a window except the removal of the confirmed rows, in the open transaction."""
        queue_commit = self._queue_commit
        for claim, result in answers:
            if claim in confirmed:
                queue_commit.note(claim, "confirmed", "no subscriber" if result == "unroutable" else "")
        died = 0
        kept: list[Claim] = []
        for claim, result in answers:
            if has_left(claim, result):
                continue
            if result == "oversized":
                error = MessageOversized(OVERSIZED.format(len(claim.envelope)))
                died += self._bury(claim, "oversized", error, claim.failures)
            elif result == "lost" and len(answers) == 1:
                died += self._count_loss(claim)
            else:
                self._session.queue.release(claim)
                if result in ("unroutable", "refused") and claim.message_id not in self._left:
                    kept.append(claim)
        self._session.edge.clear([*confirmed, *kept])
        self._judge_destinations(answers)
        return died

    def _count_loss(self, claim: Claim) -> int:
        """Count a lost connection against the message that was alone on it. Returns 1 if the message died of it."""
        losses = claim.failures + 1
        if losses >= LOSSES_MAX:
            error = MaybeSent(
                f"{LOSSES_MAX} connections to the broker were lost with this message alone on them. It may have been "
                "published. Look for it at the receiver, then replay it with --again or delete it."
            )
            return self._bury(claim, "maybe-sent", error, losses)
        try:
            self._queue_commit.defer(claim, pause_after_loss(losses, self._random), failures=losses, deaths=0)
        except LeaseLost:
            logger.info("%s is another dispatcher's by now", claim.message_id, extra={"event": "lease-lost"})
        return 0

    def _judge_destinations(self, answers: Sequence[Answer]) -> None:
        """Pause each destination whose message was refused, and end the pause of each that took one."""
        circuits = self._session.circuits
        taking = {claim.stage for claim, result in answers if has_left(claim, result)}
        refusing = {claim.stage: REFUSALS[result] for claim, result in answers if is_refused(claim, result)}
        paused = {each.stage for each in circuits.paused()} if taking else set()
        for stage in sorted(refusing.keys() | taking):
            if stage in refusing:
                breaker = with_refusal(circuits.lock(stage), refusing[stage], self._clock.now())
                circuits.keep(breaker)
                if breaker.pause is not None and not breaker.pause.probes:
                    logger.error(
                        "%s is paused: %s. Its messages are tried one at a time until one is confirmed",
                        stage,
                        refusing[stage],
                        extra={"event": "destination-paused", "stage": stage},
                    )
            elif stage in paused and circuits.forget(stage):
                logger.warning(
                    "%s is no longer paused: a message was confirmed", stage, extra={"event": "stage-resumed"}
                )

    def _bury_old(self, claims: Sequence[Claim]) -> None:
        with committing(self._session):
            for each in claims:
                error = MaybeSent(
                    "it may have been published more than three days ago, and its receiver may no longer know that "
                    "copy. Look for it there, then replay it with --again or delete it."
                )
                self._bury(each, "maybe-sent", error, each.failures)

    def _bury(self, claim: Claim, reason: DeathReason, error: Exception, failures: int) -> int:
        """Make an outbound message a dead letter, in the open transaction. Returns 0 where another owner has it."""
        if not self._session.queue.remove(claim):
            return 0
        letter = undeliverable(claim, reason, error, failures, self._clock.now(), self._queue_commit.node)
        self._session.dead_letters.bury(letter)
        self._session.edge.clear([claim])
        self._session.journal.record([self._queue_commit.dead_line(letter)])
        ids = {"message_id": claim.message_id, "flow_id": claim.flow_id}
        logger.error(
            "%s to %s is now a dead letter: %s", claim.message_id, claim.stage, error, extra={"event": reason, **ids}
        )
        return 1

    def _give_back_unwritten(self, claims: Sequence[Claim]) -> None:
        """Release rows that were not sent. The stamps that this claim set are not true."""
        with committing(self._session):
            for each in claims:
                self._session.queue.release(each)
            self._session.edge.clear([each for each in claims if each.message_id not in self._left])
        self._has_claims = False

    def _release(self, claims: Sequence[Claim]) -> None:
        with committing(self._session):
            for each in claims:
                self._session.queue.release(each)
        self._has_claims = False


OVERSIZED = (
    "the broker accepts no message of this size, {:,} bytes. Raise the broker's limit and replay it, or send a "
    "reference in place of the content."
)


def _publication_of(claim: Claim) -> Publication:
    return publication_at(claim.stage, claim.message_id, claim.flow_id, claim.envelope)


def has_left(claim: Claim, result: PublishResult) -> bool:
    """Say whether the broker has the message. A topic without a subscriber has done its part."""
    return result == "confirmed" or (result == "unroutable" and is_topic(claim.stage.removeprefix(OUTBOUND_PREFIX)))


def is_refused(claim: Claim, result: PublishResult) -> bool:
    return result in REFUSALS and not has_left(claim, result)
