"""A flow's history, arranged as a tree of messages."""

from __future__ import annotations

from typing import Any

import pytest

from stagepost.observe.trace import Trace, arrange, read_trace
from stagepost.ports import journal
from stagepost.ports.journal import Waypoint, WaypointName


def waypoint(name: WaypointName, message: str, at: int = 1, *, cause: str | None = None) -> Waypoint:
    kind = "request" if name == "sent" else None
    return Waypoint(name, at, "node", f"shop.{message}", message, "order:1", 1, 0, cause, kind)


def standing(*names: WaypointName) -> tuple[str, str]:
    found = arrange("order:1", [waypoint(name, "m") for name in names])
    return found.messages["m"].standing, found.standing


def test_each_message_stands_below_the_one_that_caused_it_in_the_order_of_the_journal() -> None:
    found = arrange(
        "order:1",
        [
            waypoint("accepted", "a"),
            waypoint("sent", "b", cause="a"),
            waypoint("sent", "c", cause="a"),
            waypoint("sent", "d", cause="b"),
            waypoint("received", "c"),
        ],
    )
    (root,) = found.roots
    assert root.message_id == "a"
    assert [each.message_id for each in root.caused] == ["b", "c"]
    assert [each.message_id for each in root.caused[0].caused] == ["d"]
    assert [each.waypoint for each in root.caused[1].waypoints] == ["sent", "received"]
    assert found.messages.keys() == {"a", "b", "c", "d"}


def test_a_flow_that_was_started_several_times_over_has_several_roots() -> None:
    found = arrange("order:1", [waypoint("accepted", "a"), waypoint("accepted", "b")])
    assert [each.message_id for each in found.roots] == ["a", "b"]


def test_one_whose_cause_the_journal_no_longer_knows_is_a_root() -> None:
    found = arrange("order:1", [waypoint("sent", "b", cause="purged")])
    assert [each.message_id for each in found.roots] == ["b"]
    assert found.roots[0].cause_id == "purged"


def test_it_began_with_its_first_waypoint_and_ended_with_its_last() -> None:
    found = arrange("order:1", [waypoint("accepted", "a", 5), waypoint("sent", "b", 9), waypoint("committed", "a", 7)])
    assert (found.began_at, found.last_at) == (5, 9)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["accepted"], ("waiting", "under way")),
        (["sent", "received"], ("running", "under way")),
        (["sent", "received", "returned"], ("waiting", "under way")),
        (["sent", "received", "failed", "delayed"], ("delayed", "under way")),
        (["sent", "received", "died", "delayed"], ("delayed", "under way")),
        (["sent", "received", "committed"], ("committed", "completed")),
        (["sent", "received", "failed", "dead"], ("dead", "dead")),
        (["sent", "received", "expired"], ("expired", "completed")),
        (["sent", "received", "failed", "dead", "replayed"], ("waiting", "under way")),
    ],
)
def test_where_a_message_stands_follows_from_its_last_waypoint(
    names: list[WaypointName], wanted: tuple[str, str]
) -> None:
    assert standing(*names) == wanted


def test_a_flow_is_dead_when_one_message_is_and_no_other_is_under_way() -> None:
    dead = [waypoint("accepted", "a"), waypoint("committed", "a"), waypoint("sent", "b"), waypoint("dead", "b")]
    assert arrange("order:1", dead).standing == "dead"
    assert arrange("order:1", [*dead, waypoint("expired", "c")]).standing == "dead"
    assert arrange("order:1", [*dead, waypoint("sent", "c")]).standing == "under way"


class Journal:
    def __init__(self, flow_id: str, waypoints: list[Waypoint]) -> None:
        self._flow_id = flow_id
        self._waypoints = waypoints

    def history(self, flow_or_message_id: str, latest: int | None = None) -> list[Waypoint]:
        known = {self._flow_id, *(each.message_id for each in self._waypoints)}
        return self._waypoints if flow_or_message_id in known else []


def read(wanted: str) -> Trace | None:
    written: Any = Journal("order:1", [waypoint("accepted", "a"), waypoint("sent", "b", cause="a")])
    checked: journal.Journal = written
    return read_trace(checked, wanted)


def test_a_flow_is_found_by_its_id_or_by_one_of_its_messages() -> None:
    for wanted in ("order:1", "a", "b"):
        found = read(wanted)
        assert found is not None
        assert found.flow_id == "order:1"
        assert found.messages.keys() == {"a", "b"}


def test_what_the_journal_does_not_know_is_not_found() -> None:
    assert read("order:2") is None
