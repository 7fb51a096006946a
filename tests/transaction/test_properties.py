"""Sticky values of a flow: seen by everything sent after they were set, and downstream of it, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stagepost import App, Context, IllegalCall, Target
from stagepost.testing import Harness

NewHarness = Callable[..., Harness]
Seen = dict[str, dict[str, Any]]

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres


@dataclass
class Note:
    text: str


@pytest.fixture
def seen() -> Seen:
    """The properties that each note came with."""
    return {}


@pytest.fixture
def last(app: App, seen: Seen) -> Target[Note, Note]:
    @app.endpoint("last")
    def last(ctx: Context, note: Note) -> Note:
        seen[note.text] = dict(ctx.properties)
        return Note(f"answer to {note.text}")

    return last


def test_a_property_is_seen_by_what_is_sent_after_it_was_set(
    app: App, harness: NewHarness, seen: Seen, last: Target[Note, Note]
) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ctx.send(last, Note("before"))
        ctx.properties["colour"] = "red"
        ctx.send(last, Note("red"))
        ctx.properties["colour"] = "green"
        ctx.properties["size"] = 3
        ctx.send(last, Note("green"))
        del ctx.properties["colour"]
        ctx.send(last, Note("after"))

    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    assert seen == {
        "before": {},
        "red": {"colour": "red"},
        "green": {"colour": "green", "size": 3},
        "after": {"size": 3},
    }


def test_a_property_sticks_to_everything_downstream(
    app: App, harness: NewHarness, seen: Seen, last: Target[Note, Note]
) -> None:
    begin = app.staged("begin")

    @begin.stage
    def first(ctx: Context, note: Note) -> None:
        ctx.properties["by"] = "first"
        ctx.request(last, Note("request"))

    @begin.stage
    def second(ctx: Context, note: Note) -> None:
        seen[note.text] = dict(ctx.properties)
        ctx.next(Note("next"))

    @begin.stage
    def third(ctx: Context, note: Note) -> None:
        seen[note.text] = dict(ctx.properties)
        ctx.send(last, Note("sent"))

    app.start(begin, Note("x"), flow_id="flow", properties={"from": "outside"})
    harness().drain()
    both = {"from": "outside", "by": "first"}
    assert seen == {"request": both, "answer to request": both, "next": both, "sent": both}


def test_a_property_is_not_seen_upstream_or_by_neighbours(
    app: App, harness: NewHarness, seen: Seen, last: Target[Note, Note]
) -> None:
    @app.endpoint("branch")
    def branch(ctx: Context, note: Note) -> None:
        assert dict(ctx.properties) == {}
        ctx.properties["branch"] = note.text
        ctx.send(last, note)

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ctx.send(branch, Note("a"))
        ctx.send(branch, Note("b"))
        ctx.send(last, Note("begin"))

    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    assert seen == {"a": {"branch": "a"}, "b": {"branch": "b"}, "begin": {}}


def test_what_a_failed_attempt_set_is_gone(app: App, harness: NewHarness, seen: Seen, last: Target[Note, Note]) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        if ctx.attempt == 1:
            ctx.properties["attempt"] = 1
            raise ValueError
        ctx.send(last, note)

    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    assert seen == {"x": {}}


def test_a_flow_started_inside_a_stage_has_only_its_own_properties(
    app: App, harness: NewHarness, seen: Seen, last: Target[Note, Note]
) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ctx.properties["mine"] = True
        app.start(last, Note("another"), flow_id="another", properties={"theirs": [1, {"a": None}]})

    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    assert seen == {"another": {"theirs": [1, {"a": None}]}}


def test_properties_are_a_mapping(app: App, harness: NewHarness) -> None:
    found: list[Any] = []

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ctx.properties.update(a=1, b=[2, 3])
        found.append((len(ctx.properties), sorted(ctx.properties), ctx.properties.get("c", "none")))
        with pytest.raises(KeyError):
            ctx.properties["c"]
        # A copy comes out: to change a property is to set it.
        ctx.properties["b"].append(4)
        found.append(ctx.properties["b"])

    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    assert found == [(2, ["a", "b"], "none"), [2, 3]]


NOT_JSON: dict[str, Any] = {
    "a tuple": (1, 2),
    "a set": {1},
    "NaN": math.nan,
    "infinity": math.inf,
    "an object": object(),
    "bytes": b"x",
    "a number as key": {1: "a"},
    "a lone surrogate": "\udce9",
}


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_a_property_that_would_not_come_back_as_it_is_is_refused(
    app: App, harness: NewHarness, last: Target[Note, Note], value: Any
) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        ctx.properties["colour"] = value

    app.start(begin, Note("x"), flow_id="flow")
    worker = harness()
    worker.drain()
    (letter,) = worker.dead_letters()
    assert letter.reason == "hopeless"
    assert "property 'colour'" in letter.summary
    with pytest.raises(IllegalCall, match="property 'colour'"):
        app.start(last, Note("x"), flow_id="other", properties={"colour": value})


def test_a_kept_context_sets_no_property(app: App, harness: NewHarness) -> None:
    kept: list[Context] = []

    @app.endpoint("begin")
    def begin(ctx: Context, note: Note) -> None:
        kept.append(ctx)

    app.start(begin, Note("x"), flow_id="flow")
    harness().drain()
    with pytest.raises(IllegalCall, match="after the handler of begin had returned"):
        kept[0].properties["late"] = 1
