"""The contract of every store. Run it against your own:

    from stagepost.testing.contract import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self) -> Iterator[Store]:             # empty, and new for each test
            yield MyStore(...)

        @pytest.fixture
        def scribble(self) -> Callable[[Any, str], None]:       # a handler's work on `session.connection`
            return lambda connection, text: connection.write(text)

        @pytest.fixture
        def scribbles(self, store) -> Callable[[], list[str]]:  # the committed texts, oldest first
            return lambda: ...

``clock`` is a ``ManualClock`` that the contract provides, and the store must use no other clock. A store that several
threads cannot use at a time leaves out ``ThreadsContract``: its test names the other parts as bases. A store that
allows one writer at a time adds ``OneWriterContract``. A store that Spark reads adds ``CursorsContract``, one that
Spark writes adds ``StagingsContract``, and one that is purged adds ``RetentionContract``. One that is archived adds
``ArchivesContract``, and one with the capability ``effects`` adds ``EffectsContract``. The contract needs pytest. The
module ``comparison``, which is imported by its own name, also needs hypothesis.
"""

import pytest

# This must precede the imports, so that pytest explains failed assertions in a contract like those in a test.
pytest.register_assert_rewrite(
    "stagepost.testing.contract.archives",
    "stagepost.testing.contract.audits",
    "stagepost.testing.contract.broker_addresses",
    "stagepost.testing.contract.broker_givens",
    "stagepost.testing.contract.broker_losses",
    "stagepost.testing.contract.brokers",
    "stagepost.testing.contract.business_keys",
    "stagepost.testing.contract.cursors",
    "stagepost.testing.contract.declarations",
    "stagepost.testing.contract.documents",
    "stagepost.testing.contract.edges",
    "stagepost.testing.contract.effects",
    "stagepost.testing.contract.givens",
    "stagepost.testing.contract.liveness",
    "stagepost.testing.contract.outboxes",
    "stagepost.testing.contract.queues",
    "stagepost.testing.contract.records",
    "stagepost.testing.contract.replays",
    "stagepost.testing.contract.retention",
    "stagepost.testing.contract.runs",
    "stagepost.testing.contract.sessions",
    "stagepost.testing.contract.stagings",
    "stagepost.testing.contract.circuits",
    "stagepost.testing.contract.threads",
    "stagepost.testing.contract.comparison",
)

from stagepost.testing.contract.archives import ArchivesContract  # noqa: E402
from stagepost.testing.contract.audits import AuditsContract  # noqa: E402
from stagepost.testing.contract.business_keys import BusinessKeysContract  # noqa: E402
from stagepost.testing.contract.circuits import CircuitsContract  # noqa: E402
from stagepost.testing.contract.cursors import CursorsContract  # noqa: E402
from stagepost.testing.contract.declarations import DeclarationsContract  # noqa: E402
from stagepost.testing.contract.edges import EdgesContract  # noqa: E402
from stagepost.testing.contract.effects import EffectsContract  # noqa: E402
from stagepost.testing.contract.liveness import LivenessContract  # noqa: E402
from stagepost.testing.contract.outboxes import OutboxContract  # noqa: E402
from stagepost.testing.contract.queues import QueueContract  # noqa: E402
from stagepost.testing.contract.records import LettersContract, RecordsContract  # noqa: E402
from stagepost.testing.contract.replays import ReplaysContract  # noqa: E402
from stagepost.testing.contract.retention import RetentionContract  # noqa: E402
from stagepost.testing.contract.runs import RunsContract  # noqa: E402
from stagepost.testing.contract.sessions import SessionContract  # noqa: E402
from stagepost.testing.contract.stagings import StagingsContract  # noqa: E402
from stagepost.testing.contract.threads import OneWriterContract, ThreadsContract  # noqa: E402


class StoreContract(
    SessionContract,
    QueueContract,
    RecordsContract,
    LettersContract,
    ReplaysContract,
    AuditsContract,
    BusinessKeysContract,
    CircuitsContract,
    DeclarationsContract,
    EdgesContract,
    RunsContract,
    OutboxContract,
    LivenessContract,
    ThreadsContract,
):
    """The whole contract of a store. Provide ``store``, ``scribble`` and ``scribbles``."""


__all__ = [
    "ArchivesContract",
    "BusinessKeysContract",
    "CircuitsContract",
    "CursorsContract",
    "DeclarationsContract",
    "EdgesContract",
    "EffectsContract",
    "LettersContract",
    "LivenessContract",
    "OneWriterContract",
    "OutboxContract",
    "QueueContract",
    "RecordsContract",
    "ReplaysContract",
    "RetentionContract",
    "RunsContract",
    "SessionContract",
    "StagingsContract",
    "StoreContract",
    "ThreadsContract",
]
