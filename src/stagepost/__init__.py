"""Transactional, staged messaging: every stage consumed its message, changed its database and produced its messages,
or did none of that."""

from stagepost.app import App
from stagepost.app.endpoints import Endpoint, StagedEndpoint
from stagepost.flow.context import Context
from stagepost.flow.errors import (
    ClaimUnknown,
    CommitUnknown,
    DeclarationError,
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
    SchemaMismatch,
    StagepostError,
    StoreContention,
    StoreError,
    StoreUnavailable,
    TimeLimitExceeded,
    TransactionBoundary,
    TransactionEnded,
    Undecodable,
    WorkerDied,
)
from stagepost.flow.initiation import Initiation, Started
from stagepost.flow.rows import Row, Rows
from stagepost.flow.target import Target
from stagepost.recovery.redelivery import Redelivery

__version__ = "0.1.0"

__all__ = [
    "App",
    "ClaimUnknown",
    "CommitUnknown",
    "Context",
    "DeclarationError",
    "Endpoint",
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
    "Row",
    "Rows",
    "SchemaMismatch",
    "StagedEndpoint",
    "StagepostError",
    "Started",
    "StoreContention",
    "StoreError",
    "StoreUnavailable",
    "Target",
    "TimeLimitExceeded",
    "TransactionBoundary",
    "TransactionEnded",
    "Undecodable",
    "WorkerDied",
]

# What a user sees in a traceback, a dead letter or a repr is the name to import.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
