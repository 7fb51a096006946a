"""The commands show the edge: outbound depth per destination, paused destinations, and the way of a message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from stagepost.broker.memory import MemoryBroker
from stagepost.observe.trace import arrange
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.recovery.outbound import LOSSES_MAX
from tests.cli.shop import command, parsed
from tests.edges.service import ABROAD, OUT, Sender, prepared
from tests.edges.test_dispatching import lost


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    with closing(Sender(f"sqlite:///{tmp_path / 'shop.db'}")) as sender:
        yield sender


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def of_store(sender: Sender, *arguments: str) -> object:
    return parsed(command(*arguments, "--database", sender.app.database, "--json"))


def test_status_shows_each_destination_and_is_drained_only_without_outbound_rows(
    sender: Sender, broker: MemoryBroker
) -> None:
    connection = prepared(broker, ABROAD)
    sender.send("f1", "f2")
    found = of_store(sender, "status")
    assert isinstance(found, dict)
    assert [(each["stage"], each["ready"]) for each in found["depths"]] == [(OUT, 2)]
    assert (found["drained"], found["undeclared"]) == (False, [])
    broker.refusing = {ABROAD}
    sender.dispatcher.turn(connection)
    found = of_store(sender, "status")
    assert isinstance(found, dict)
    assert [each["stage"] for each in found["paused"]] == [OUT]
    assert "refused" in found["paused"][0]["error"]


def test_a_trace_shows_that_a_message_left(sender: Sender, broker: MemoryBroker) -> None:
    connection = prepared(broker, ABROAD)
    sender.send("f1")
    sender.dispatcher.turn(connection)
    found = of_store(sender, "trace", "f1")
    assert isinstance(found, dict)
    (message,) = found["messages"]
    assert (found["standing"], message["stage"], message["standing"]) == ("completed", OUT, "confirmed")


def test_a_copy_that_was_recognised_leaves_the_standing_of_its_message(sender: Sender, broker: MemoryBroker) -> None:
    prepared(broker, ABROAD)
    sender.send("f1")
    lines = sender.session.journal.history("f1")
    arrived = msgspec.structs.replace(lines[0], waypoint="arrived")
    copies = [arrived, msgspec.structs.replace(lines[0], waypoint="duplicate")]
    assert [each.standing for each in arrange("f1", copies).messages.values()] == ["waiting"]
    committed = msgspec.structs.replace(lines[0], waypoint="committed")
    assert arrange("f1", [arrived, committed, copies[1]]).standing == "completed"


def test_a_message_that_may_have_been_sent_is_replayed_only_on_request(sender: Sender, broker: MemoryBroker) -> None:
    prepared(broker, ABROAD)
    sender.send("f1")
    for _ in range(LOSSES_MAX):
        lost(sender, broker)
        sender.clock.advance(70)
    assert [each.reason for each in sender.letters()] == ["maybe-sent"]
    refused = command("dead", "replay", "--all", "--database", sender.app.database)
    assert refused.exit_code != 0
    assert "--again" in refused.output
    assert len(sender.letters()) == 1
    replayed = of_store(sender, "dead", "replay", "--all", "--again")
    assert isinstance(replayed, dict)
    assert replayed["replayed"] == 1
    assert sender.waiting() == {OUT: 1}
    # The replay is the first copy of a new life: it leaves, however old the message is.
    assert sender.dispatcher.turn(broker.connect(1)) == 1


@pytest.mark.parametrize(("is_down", "severity", "code"), [(False, "ok", 0), (True, "critical", 1)])
def test_doctor_says_whether_the_broker_answers(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, is_down: bool, severity: str, code: int
) -> None:
    url = "memory:doctored"
    broker = broker_driver_of(url).broker(url, sender.clock, sender.engine.random)
    assert isinstance(broker, MemoryBroker)
    broker.is_down = is_down
    monkeypatch.setenv("STAGEPOST_DATABASE", sender.app.database)
    monkeypatch.setenv("STAGEPOST_BROKER", url)
    result = command("doctor", "--json")
    assert result.exit_code == code
    (found,) = (each for each in json.loads(result.output)["findings"] if each["code"] == "broker")
    assert found["severity"] == severity
    assert url in found["seen"]
