"""Transactional, staged messaging: every stage consumed its message, changed its database and produced its messages,
or did none of that."""

from stagepost.app import App
from stagepost.app.asking import Asked
from stagepost.app.endpoints import Endpoint, StagedEndpoint
from stagepost.edge.ear import Ear
from stagepost.flow.context import Context
from stagepost.flow.errors import (
    AlreadyStarted,
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
from stagepost.flow.target import Target
from stagepost.flow.topic import Topic
from stagepost.recovery.redelivery import Redelivery

__version__ = "0.1.0"

__all__ = [
    "AlreadyStarted",
    "App",
    "Asked",
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
    "Initiation",
    "InitiationError",
    "InvalidId",
    "LeaseLost",
    "NothingSent",
    "OutcomeUnknown",
    "Redelivery",
    "Refuse",
    "ReplyTimeout",
    "Row",
    "Rows",
    "SchemaMismatch",
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

# Who asks must be seen to live, which is a room above the app's.
App.ear_type = Ear

# What a user sees in a traceback, a dead letter or a repr is the name to import.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
