"""An app with two sinks and a service, which write what happens around each envelope into a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stagepost import App, Context, IncomingEnvelope, OutgoingEnvelope, Redelivery, Sink
from tests.edges.direct_service import Order

REDELIVERY = Redelivery.fixed(every_seconds=0.05, times=3)
AROUND = ("outer initialize", "inner initialize", "till used")
WELL = (
    *AROUND,
    *("inner before_commit", "outer before_commit", "inner success", "outer success"),
    *("inner dispose", "outer dispose", "till released"),
)
FAILED = (
    *AROUND,
    *("inner failure no money", "outer failure no money", "inner dispose", "outer dispose", "till released"),
)


class Recorder(Sink):
    def __init__(self, name: str, note: Callable[[str, str], None]) -> None:
        self._name = name
        self._note = note
        self._flow = ""

    def initialize(self, incoming: IncomingEnvelope) -> None:
        self._flow = incoming.flow_id
        self._tell("initialize")

    def before_commit(self, outgoing: Sequence[OutgoingEnvelope]) -> None:
        self._tell("before_commit")

    def success(self) -> None:
        self._tell("success")

    def failure(self, error: BaseException | None) -> None:
        self._tell(f"failure {error}")

    def dispose(self) -> None:
        self._tell("dispose")

    def _tell(self, call: str) -> None:
        self._note(self._flow, f"{self._name} {call}")


class Till:
    """A service. It is also the scope of its envelope, and the only service there."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._flow = ""

    def use(self, flow_id: str) -> None:
        self._flow = flow_id
        self._note(flow_id, "till used")

    def get(self, wanted: Any, /) -> Any:
        assert wanted is Till
        return self

    def close(self) -> None:
        self._note(self._flow, "till released")


class Tills:
    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note

    def open(self) -> Till:
        return Till(self._note)


class Record:
    """The file. Each line has a flow and an event; processes may write it at the same time."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def note(self, flow_id: str, event: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{flow_id}\t{event}\n")

    def of(self, flow_id: str) -> tuple[str, ...]:
        lines = (line.split("\t") for line in self._file.read_text().splitlines())
        return tuple(event for flow, event in lines if flow == flow_id)


def handle(ctx: Context, order: Order) -> None:
    """Fail the first attempt at the order ``bad``."""
    ctx.get(Till).use(ctx.flow_id)
    if order.order_id == "bad" and ctx.attempt == 1:
        raise ValueError("no money")


def declare_sinks(app: App, record: Record) -> None:
    for name in ("outer", "inner"):
        app.sink(lambda name=name: Recorder(name, record.note))


def make_app(folder: str) -> App:
    record = Record(Path(folder) / "record")
    app = App("recorded", scopes=Tills(record.note), redelivery=REDELIVERY)
    declare_sinks(app, record)
    app.endpoint("shop.pay")(handle)
    return app
