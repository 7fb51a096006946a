"""Transactional, staged messaging: every stage consumed its message, changed its database and produced its messages,
or did none of that."""

from stagepost.app import App
from stagepost.app.endpoints import Endpoint, StagedEndpoint
from stagepost.edge.reply_future import ReplyFuture
from stagepost.flow.context import Context
from stagepost.flow.errors import (
    AlreadyStarted,
    CapabilityMissing,
    ClaimUnknown,
    CommitUnknown,
    ConnectionLost,
    DeclarationError,
    FailureUnwritable,
    FlowDied,
    FlowTooLong,
    HandlerError,
    IdConflict,
    IllegalCall,
    InitiationError,
    InvalidId,
    LeaseLost,
    NothingSent,
    OutcomeUnknown,
    Refuse,
    ReplyTimeout,
    SchemaMismatch,
    StagepostError,
    StoreContention,
    StoreError,
    StoreExhausted,
    StoreUnavailable,
    TimeLimitExceeded,
    TransactionBoundary,
    TransactionEnded,
    Undecodable,
    WorkerDied,
    WrongAddress,
)
from stagepost.flow.initiation import Initiation, Started
from stagepost.flow.rows import Row, Rows
from stagepost.flow.target import Target, Topic
from stagepost.recovery.redelivery import Redelivery
from stagepost.transaction.scopes import Scope, Scopes
from stagepost.transaction.sinks import IncomingEnvelope, OutgoingEnvelope, Sink

__version__ = "0.1.0"

__all__ = [
    "AlreadyStarted",
    "App",
    "CapabilityMissing",
    "ClaimUnknown",
    "CommitUnknown",
    "ConnectionLost",
    "Context",
    "DeclarationError",
    "Endpoint",
    "FailureUnwritable",
    "FlowDied",
    "FlowTooLong",
    "HandlerError",
    "IdConflict",
    "IllegalCall",
    "IncomingEnvelope",
    "Initiation",
    "InitiationError",
    "InvalidId",
    "LeaseLost",
    "NothingSent",
    "OutcomeUnknown",
    "OutgoingEnvelope",
    "Redelivery",
    "Refuse",
    "ReplyFuture",
    "ReplyTimeout",
    "Row",
    "Rows",
    "SchemaMismatch",
    "Scope",
    "Scopes",
    "Sink",
    "StagedEndpoint",
    "StagepostError",
    "Started",
    "StoreContention",
    "StoreError",
    "StoreExhausted",
    "StoreUnavailable",
    "Target",
    "TimeLimitExceeded",
    "Topic",
    "TransactionBoundary",
    "TransactionEnded",
    "Undecodable",
    "WorkerDied",
    "WrongAddress",
]

# Tracebacks, dead letters and reprs show the name to import.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
