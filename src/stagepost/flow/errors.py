"""Every error Stagepost raises, in one tree.

    StagepostError
    ├── DeclarationError            an endpoint, stage, type or setting that cannot work; raised when it is declared
    ├── Refuse                      a handler's own word: set this message aside now, redelivering cannot help
    ├── HandlerError                a handler did what a stage cannot do
    │   ├── IllegalCall             request and reply in one run, a request without a next stage, a wrong type, …
    │   ├── FlowTooLong             more hops, or a deeper call stack, than the app allows
    │   └── TransactionBoundary     a handler tried to end the stage's transaction
    ├── TransactionEnded            the stage's transaction ended under the handler (ON CONFLICT ROLLBACK, an interrupt)
    ├── Undecodable                 bytes that are not an envelope, or not of the stage's types
    ├── WrongAddress                an envelope in the queue of another stage than the one it is addressed to
    ├── TimeLimitExceeded           an attempt took longer than its stage's time_limit
    ├── FailureUnwritable           how an attempt failed could not be written, so this stands in its place
    ├── WorkerDied                  the process died while it ran this message, alone, too often
    ├── InvalidId                   a flow id or message id that could not be stored or searched; also a ValueError
    ├── IdConflict                  an id that was accepted before, with other content
    ├── InitiationError             starting a flow did not work
    │   ├── NothingSent             nothing was committed
    │   ├── AlreadyStarted          what was requested had been started before; the reply goes to whoever did
    │   └── OutcomeUnknown          the commit was sent and its answer was lost; trying again with the same ids is safe
    ├── ReplyTimeout                no reply came to this process in time; the flow itself goes on
    ├── FlowDied                    a dead letter stands where the reply would have come from
    ├── LeaseLost                   the message now belongs to another owner; this attempt may change nothing
    └── StoreError                  the database said no to one of Stagepost's own statements
        ├── StoreContention         busy, locked, deadlock victim: the same attempt may succeed in a moment
        ├── StoreUnavailable        down, full or unreadable
        │   ├── StoreExhausted      it answers, and has no room, on the disk or in memory, for what is asked of it
        │   ├── ConnectionLost      it ended the connection without a word under a handler's own statements: they may
        │   │                       have crashed it
        │   └── ClaimUnknown        a claim's commit had no answer, and nobody can be asked for it yet
        ├── CommitUnknown           the commit was sent and its answer was lost
        └── SchemaMismatch          the tables are of another version of Stagepost

``code`` is stable: logs, the journal and ``--json`` output carry it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.claim import Claim


class StagepostError(Exception):
    code = "stagepost"


class DeclarationError(StagepostError):
    code = "declaration"


class Refuse(StagepostError):
    """Raise it in a handler (or call ``ctx.refuse``) to roll back and dead-letter the message at once."""

    code = "refused"


class HandlerError(StagepostError):
    """The handler itself is wrong: another attempt cannot succeed, so the message is dead-lettered at once."""

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
    """Also raised into a running handler, by its class alone; so it brings its own text."""

    code = "time-limit"

    def __init__(self, text: str = "the attempt took longer than its stage's time_limit") -> None:
        super().__init__(text)


class FailureUnwritable(StagepostError):
    """Stands in a dead letter for an error that could not be written there."""

    code = "failure-unwritable"


class WorkerDied(StagepostError):
    code = "worker-died"


class InvalidId(StagepostError, ValueError):
    code = "invalid-id"


class IdConflict(StagepostError):
    """The id was accepted before, and what it stood for then is not what it stands for now.

    ``scope`` is the target endpoint, ``key`` the message id, ``flow_id`` the flow that was to be started now; the
    digests are of the two contents.
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


class InitiationError(StagepostError):
    code = "initiation"

    def __init__(self, text: str, message_ids: Sequence[str] = ()) -> None:
        self.message_ids = tuple(message_ids)
        super().__init__(text)


class NothingSent(InitiationError):
    """Nothing was committed and no flow started; ``message_ids`` names what would have been sent."""

    code = "nothing-sent"


class AlreadyStarted(InitiationError):
    """A request was made before, and its reply goes to the one that made it first."""

    code = "already-started"


class OutcomeUnknown(InitiationError):
    """The commit was sent and its answer lost. Trying again with the same ids is always safe."""

    code = "outcome-unknown"


class ReplyTimeout(StagepostError):
    """No reply came in time to ``app.request``. The flow goes on."""

    code = "reply-timeout"

    def __init__(self, text: str, flow_id: str) -> None:
        self.flow_id = flow_id
        super().__init__(text)


class FlowDied(StagepostError):
    """A dead letter stands where the reply to ``app.request`` would have come from: ``letter_id``, as ``stagepost
    dead`` numbers it, with its ``summary``."""

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
            f"{message_id} at {stage} is no longer held by this attempt: its owner was taken for dead, or paused too "
            "long, and another has it."
        )


class StoreError(StagepostError):
    code = "store"


class StoreContention(StoreError):
    code = "store-contention"


class StoreUnavailable(StoreError):
    code = "store-unavailable"


class ConnectionLost(StoreUnavailable):
    """The server, which says farewell when others end it, said nothing: a handler's statement may have crashed it."""

    code = "connection-lost"


class StoreExhausted(StoreUnavailable):
    """For everybody, or for this one alone, who asks for too much."""

    code = "store-exhausted"


class ClaimUnknown(StoreUnavailable):
    """Whether these claims were committed is not known, and nobody can be asked yet."""

    code = "claim-unknown"

    def __init__(self, text: str, claims: Sequence[Claim]) -> None:
        super().__init__(text)
        self.claims = list(claims)


class CommitUnknown(StoreError):
    code = "commit-unknown"


class SchemaMismatch(StoreError):
    code = "schema-mismatch"
