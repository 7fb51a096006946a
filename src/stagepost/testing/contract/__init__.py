"""What every store, and every transport, must do. Run it against your own:

    from stagepost.testing.contract import StoreContract, TransportContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self) -> Iterator[Store]:             # empty, and new for each test
            yield MyStore(...)

        @pytest.fixture
        def scribble(self) -> Callable[[Any, str], None]:       # what a handler does with `session.connection`
            return lambda connection, text: connection.write(text)

        @pytest.fixture
        def scribbles(self, store) -> Callable[[], list[str]]:  # what was committed of it, oldest first
            return lambda: ...

    class TestMyTransport(TransportContract):
        @pytest.fixture
        def make_access(self, clock) -> Callable[[], Access]:   # ways into one and the same new, empty place
            return lambda: Access(session, MyTransport(session, clock))

``clock`` is a ``ManualClock`` that the contract provides: nothing may look at another one. A store that cannot be used
by several threads at a time leaves ``ThreadsContract`` out, by naming the parts it keeps as its bases; one that lets
one write at a time adds ``OneWriterContract``. All of it needs pytest; ``comparison``, which is imported by its own
name, also needs hypothesis.
"""

import pytest

# Before they are imported: what fails in a contract shall be explained like what fails in a test.
pytest.register_assert_rewrite(
    "stagepost.testing.contract.declarations",
    "stagepost.testing.contract.givens",
    "stagepost.testing.contract.outboxes",
    "stagepost.testing.contract.queues",
    "stagepost.testing.contract.records",
    "stagepost.testing.contract.replays",
    "stagepost.testing.contract.runs",
    "stagepost.testing.contract.sessions",
    "stagepost.testing.contract.streaks",
    "stagepost.testing.contract.threads",
    "stagepost.testing.contract.transports",
    "stagepost.testing.contract.comparison",
)

from stagepost.testing.contract.declarations import DeclarationsContract  # noqa: E402
from stagepost.testing.contract.outboxes import OutboxContract  # noqa: E402
from stagepost.testing.contract.queues import QueueContract  # noqa: E402
from stagepost.testing.contract.records import LettersContract, RecordsContract  # noqa: E402
from stagepost.testing.contract.replays import ReplaysContract  # noqa: E402
from stagepost.testing.contract.runs import RunsContract  # noqa: E402
from stagepost.testing.contract.sessions import SessionContract  # noqa: E402
from stagepost.testing.contract.streaks import StreaksContract  # noqa: E402
from stagepost.testing.contract.threads import OneWriterContract, ThreadsContract  # noqa: E402
from stagepost.testing.contract.transports import TransportContract  # noqa: E402


class StoreContract(
    SessionContract,
    QueueContract,
    RecordsContract,
    LettersContract,
    ReplaysContract,
    StreaksContract,
    DeclarationsContract,
    RunsContract,
    OutboxContract,
    ThreadsContract,
):
    """All that a store is asked for. Provide ``store``, ``scribble`` and ``scribbles``."""


__all__ = [
    "DeclarationsContract",
    "LettersContract",
    "OneWriterContract",
    "OutboxContract",
    "QueueContract",
    "RecordsContract",
    "ReplaysContract",
    "RunsContract",
    "SessionContract",
    "StoreContract",
    "StreaksContract",
    "ThreadsContract",
    "TransportContract",
]
