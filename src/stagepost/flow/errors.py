"""The errors that Stagepost raises, in one tree.

    StagepostError
    ├── DeclarationError            an endpoint, stage, type or setting that cannot work; raised when it is declared
    │   └── CapabilityMissing       the store lacks a part, such as an inbox, an outbox or circuits
    ├── Refuse                      a handler refused the message: it becomes a dead letter now
    │   └── ConsumerRefused         a consumer of the gateway refused it, and has not taken it
    ├── DeliveryFailed              a consumer of the gateway did not take the message, or gave no answer
    ├── MaybeDelivered              a consumer of the gateway may have taken the message; it is not sent again
    ├── HandlerError                a handler made a call that its stage does not allow
    │   ├── IllegalCall             request and reply in one run, a request without a next stage, a wrong type, …
    │   ├── FlowTooLong             more hops, or a deeper call stack, than the app allows
    │   └── TransactionBoundary     a handler tried to end the stage's transaction
    ├── TransactionEnded            the transaction ended while the handler ran (ON CONFLICT ROLLBACK, an interrupt)
    ├── Undecodable                 bytes that are not an envelope, or not of the stage's types
    ├── WrongAddress                an envelope in the queue of a stage that it is not addressed to
    ├── TimeLimitExceeded           an attempt took longer than its stage's time_limit
    ├── FailureUnwritable           an attempt's failure could not be written; this error takes its place
    ├── WorkerDied                  the process died too often while it ran this message alone
    ├── InvalidId                   a flow id or message id that cannot be stored or searched; also a ValueError
    ├── IdConflict                  an id that was accepted before with other content
    ├── KeyConflict                 another message with the same business key, and other content, was handled before
    ├── KeyDuplicate                another message with the same business key was handled; no reply is stored
    ├── EffectConflict              an effect was called before with another request
    ├── NotDone                     an effect's call raises it: the outside did nothing
    ├── EffectDeferred              an earlier call of an effect may still be under way; the message comes again
    ├── DocumentFull                a document has too many ids that are still needed; the message comes again
    ├── InitiationError             an initiation failed
    │   ├── NothingSent             nothing was committed
    │   ├── AlreadyStarted          the request was started before; the reply goes to its first caller
    │   └── OutcomeUnknown          the commit was sent and its answer was lost; repeating with the same ids is safe
    ├── ReplayRefused               a replay of messages that may have been sent; nothing was replayed
    ├── ReplyTimeout                no reply came to this process in time; the flow itself goes on
    ├── FlowDied                    the message that would have caused the reply is a dead letter
    ├── LeaseLost                   the message now belongs to another owner; this attempt may change nothing
    ├── StoreError                  the database refused one of Stagepost's own statements
    │   ├── StoreContention         busy, locked, deadlock victim: the same attempt may succeed in a moment
    │   ├── StoreUnavailable        down, full or unreadable
    │   │   ├── StoreExhausted      the database answers, but has no room on the disk or in memory for the statement
    │   │   ├── ConnectionLost      the server ended the connection without a message during a handler's statement,
    │   │   │                       which may have crashed it
    │   │   └── ClaimUnknown        the commit of a claim had no answer, and the database cannot be read yet
    │   ├── StoreRefused            the database refuses this data, at every attempt
    │   ├── CommitUnknown           the commit was sent and its answer was lost
    │   └── SchemaMismatch          the tables are of another version of Stagepost
    └── BrokerError                 the broker refused, or did not answer
        ├── BrokerUnavailable       no host of the broker answers
        │   └── BrokerConnectionLost    the connection ended, and its unsettled deliveries come again
        ├── MaybeSent               an outbound message may have been published, and is not published again
        ├── MessageOversized        the broker never accepts a message of this size
        ├── BrokerDenied            wrong credentials, missing rights, an untrusted certificate
        ├── BrokerRefused           the broker refused a transaction, and committed nothing of it
        ├── BrokerMismatch          a queue exists with other arguments, or the broker lacks what a mode needs
        └── AddressTaken            another store receives from the address

``code`` is stable: logs, the journal and ``--json`` output carry it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.claim import Claim


class StagepostError(Exception):
    code = "stagepost"


class DeclarationError(StagepostError):
    code = "declaration"


class CapabilityMissing(DeclarationError):
    """The store lacks a capability. ``why`` names the part that needs it, and the remedy."""

    code = "capability-missing"

    def __init__(self, capability: str, why: str = "Use a store that has it.", store: str = "this store") -> None:
        super().__init__(f"{store} lacks the capability {capability!r}. {why}")


class Refuse(StagepostError):
    """A handler raises it (or calls ``ctx.refuse``) to roll back and dead-letter the message at once."""

    code = "refused"


class ConsumerRefused(Refuse):
    """A consumer outside answered with a business error, so it has not taken the message and never will."""

    code = "consumer-refused"


class DeliveryFailed(StagepostError):
    """An attempt at a delivery failed. ``wait_seconds`` is how long the consumer asked to be left alone, at least."""

    code = "delivery-failed"

    def __init__(self, text: str, wait_seconds: float = 0.0) -> None:
        self.wait_seconds = wait_seconds
        super().__init__(text)


class MaybeDelivered(StagepostError):
    """A consumer outside may have taken the message, and no further attempt can tell.

    ``may_retry``: its answer may also mean that the first copy is still at work, so the redelivery policy decides.
    """

    code = "maybe-delivered"

    def __init__(self, text: str, *, may_retry: bool = False) -> None:
        self.may_retry = may_retry
        super().__init__(text)


class HandlerError(StagepostError):
    """A mistake in the handler: another attempt cannot succeed, so the message is dead-lettered at once."""

    code = "handler"


class IllegalCall(HandlerError):
    code = "illegal-call"


class FlowTooLong(HandlerError):
    code = "flow-too-long"


class TransactionBoundary(HandlerError):
    code = "transaction-boundary"


class TransactionEnded(StagepostError):
    code = "transaction-ended"


class Undecodable(StagepostError):
    code = "undecodable"


class WrongAddress(StagepostError):
    code = "wrong-address"


class TimeLimitExceeded(StagepostError):
    """An attempt took longer than its stage's time limit.

    The text has a default, because the watchdog can raise only the class in a handler's thread.
    """

    code = "time-limit"

    def __init__(self, text: str = "the attempt took longer than its stage's time_limit") -> None:
        super().__init__(text)


class FailureUnwritable(StagepostError):
    """The cause in a dead letter whose own error could not be written."""

    code = "failure-unwritable"


class WorkerDied(StagepostError):
    code = "worker-died"


class InvalidId(StagepostError, ValueError):
    code = "invalid-id"


class IdConflict(StagepostError):
    """The id was accepted before with other content.

    ``scope`` is the target endpoint, ``key`` the message id, ``flow_id`` the flow of the rejected message. The digests
    are those of the two contents.
    """

    code = "id-conflict"

    def __init__(self, scope: str, key: str, accepted_digest: str, digest: str, *, flow_id: str) -> None:
        self.scope = scope
        self.flow_id = flow_id
        self.key = key
        self.accepted_digest = accepted_digest
        self.digest = digest
        super().__init__(
            f"{scope} accepted {key} (flow {flow_id!r}) before, with other content (digest {accepted_digest[:16]}… "
            f"then, {digest[:16]}… now). Nothing was started. Use another flow_id or message_id for other content."
        )


class KeyConflict(StagepostError):
    """A stage handled another message with the same business key and other content. Both digests are named."""

    code = "key-conflict"

    def __init__(self, stage: str, key: str, message_id: str, handled_digest: str, digest: str) -> None:
        super().__init__(
            f"{stage} handled the business key {key} with message {message_id}, which has other content (digest "
            f"{handled_digest[:16]}… then, {digest[:16]}… now). Let its sender correct the key or the content."
        )


class KeyDuplicate(StagepostError):
    """A stage handled another message with the same business key, and gave no reply itself that could be sent again."""

    code = "key-duplicate"

    def __init__(self, stage: str, key: str, message_id: str) -> None:
        super().__init__(
            f"{stage} handled the business key {key} with message {message_id}, and gave no reply itself. The caller "
            "of this duplicate gets none: look at the flow of that message."
        )


class EffectConflict(StagepostError):
    """An attempt before this one called the effect with another request: the handler does not repeat itself."""

    code = "effect-conflict"


class NotDone(StagepostError):
    """The ``call`` of an effect raises it where the outside certainly did nothing, and will do nothing."""

    code = "not-done"


class EffectDeferred(StagepostError):
    """The attempt ends here, uncounted, and the message comes again after ``seconds``."""

    code = "effect-deferred"

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class DocumentFull(StagepostError):
    """The attempt ends here, uncounted, and the message comes again after ``seconds``."""

    code = "document-full"

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class InitiationError(StagepostError):
    code = "initiation"

    def __init__(self, text: str, message_ids: Sequence[str] = ()) -> None:
        self.message_ids = tuple(message_ids)
        super().__init__(text)


class NothingSent(InitiationError):
    """Nothing was committed and no flow started. ``message_ids`` are the ids of the messages that were not sent."""

    code = "nothing-sent"


class CommittedButMaybeNotSent(InitiationError):
    """The database has committed, and the broker did not confirm the messages: in the mode ``best_effort`` alone.

    ``message_ids`` are the ids of the unconfirmed messages. Repeating with the same ids sends them, and is always safe.
    """

    code = "committed-but-maybe-not-sent"


class AlreadyStarted(InitiationError):
    """The request was made before. Its reply goes to its first caller."""

    code = "already-started"


class OutcomeUnknown(InitiationError):
    """The commit was sent and its answer was lost. Repeating with the same ids is always safe."""

    code = "outcome-unknown"


class ReplayRefused(StagepostError):
    code = "replay-refused"


class ReplyTimeout(StagepostError):
    """No reply came in time to ``app.request``. The flow goes on."""

    code = "reply-timeout"

    def __init__(self, text: str, flow_id: str) -> None:
        self.flow_id = flow_id
        super().__init__(text)


class FlowDied(StagepostError):
    """A message that would have caused the reply to ``app.request`` is a dead letter.

    ``letter_id`` is its number in ``stagepost dead``, ``summary`` its cause.
    """

    code = "flow-died"

    def __init__(self, text: str, flow_id: str, letter_id: int, summary: str) -> None:
        self.flow_id = flow_id
        self.letter_id = letter_id
        self.summary = summary
        super().__init__(text)


class LeaseLost(StagepostError):
    code = "lease-lost"

    @classmethod
    def of(cls, message_id: str, stage: str) -> LeaseLost:
        return cls(
            f"{message_id} at {stage} no longer belongs to this attempt: its process was taken for dead, or paused too "
            "long, and another owner claimed it."
        )


class StoreError(StagepostError):
    code = "store"


class StoreContention(StoreError):
    code = "store-contention"


class StoreUnavailable(StoreError):
    code = "store-unavailable"


class ConnectionLost(StoreUnavailable):
    """The server ended the connection without a message.

    A server that shuts down sends one, so the statement may have crashed this server.
    """

    code = "connection-lost"


class StoreExhausted(StoreUnavailable):
    """The database has no room for any statement, or only none for this one, which needs too much."""

    code = "store-exhausted"


class ClaimUnknown(StoreUnavailable):
    """The commit of these claims had no answer, and the database cannot be read yet."""

    code = "claim-unknown"

    def __init__(self, text: str, claims: Sequence[Claim]) -> None:
        super().__init__(text)
        self.claims = list(claims)


class StoreRefused(StoreError):
    code = "store-refused"


class CommitUnknown(StoreError):
    code = "commit-unknown"


class SchemaMismatch(StoreError):
    code = "schema-mismatch"


class BrokerError(StagepostError):
    code = "broker"


class BrokerUnavailable(BrokerError):
    code = "broker-unavailable"


class BrokerConnectionLost(BrokerUnavailable):
    code = "broker-connection-lost"


class MaybeSent(BrokerError):
    code = "maybe-sent"


class MessageOversized(BrokerError):
    code = "oversized"


class BrokerDenied(BrokerError):
    code = "broker-denied"


class BrokerRefused(BrokerError):
    code = "broker-refused"


class BrokerMismatch(BrokerError):
    code = "broker-mismatch"


class AddressTaken(BrokerError):
    code = "address-taken"


# Tracebacks show the name to import, also in processes that need no other public name.
for _each in tuple(globals().values()):
    if isinstance(_each, type) and issubclass(_each, StagepostError):
        _each.__module__ = "stagepost"
del _each
