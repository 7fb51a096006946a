"""The audit's page: its figures are those of the JSON, its texts are escaped, and it asks the network for nothing."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stagepost.pipeline.report.audit_report import AuditReport
from stagepost.pipeline.report.balance import LATENCIES
from stagepost.pipeline.report.page import frame_of, page_of
from stagepost.pipeline.report.scale import Linear, count, logarithmic, milliseconds, size
from tests.servers.chromium import visit

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTILE = """<script src="http://elsewhere.invalid/x.js">alert(1)</script>'"&"""
STAGE = "orders.place"


def window(number: int, **more: Any) -> dict[str, Any]:
    known = {"flows": 40, "sent": 160, "committed": 157, "expired": 1, "dead": 1, "edited": 1, "open": 0, "lost": 0}
    moments = {
        "window": (BEGIN + timedelta(minutes=number)).isoformat(),
        "until": (BEGIN + timedelta(minutes=number + 1)).isoformat(),
    }
    latencies = dict.fromkeys(LATENCIES, 12.5 * (number + 1))
    rest = {"doubled": 0, "failures": 3, "digest": -1, "state": "final"}
    return {**moments, **known, **rest, **latencies, **more}


def a_report(**more: Any) -> AuditReport:
    stage = {"stage": STAGE, "sent": 480, "committed": 470, "expired": 3, "dead": 3, "edited": 3, "open": 1}
    latency = {"stage": STAGE, "messages": 470, "backwards": 0, **dict.fromkeys(LATENCIES, 7.0)}
    letters = {
        "fingerprint": "a1b2c3d4e5f6", "stage": STAGE, "reason": "exhausted", "letters": 3, "sample_id": 1,
        "first_at": BEGIN.isoformat(), "last_at": BEGIN.isoformat(), "cause": "E: no", "verdict": "poison",
    }  # fmt: skip
    retention = {
        "stage": STAGE, "duplicates": 2, "lag_p50": 1.0, "lag_p99": 9e5, "lag_p9999": 1e6, "lag_max": 1e6,
        "slowest_delivery": 12e3, "keep_hours": 72, "kept_hours": 24, "is_too_short": True, "bytes": 4096,
        "types": "Order", "guard": "proactive", "guard_reason": "1.2% of the messages came again",
    }  # fmt: skip
    known: dict[str, Any] = {
        "url": "sqlite:////data/shop.db", "at": BEGIN.isoformat(), "seen_until": BEGIN.isoformat(), "unseen": 0,
        "held": 0, "is_complete": True, "waypoints": 1_234_567, "lost_count": 0, "doubled_count": 0, "stuck_count": 0,
        "in_doubt_count": 0, "doubted_count": 0,
        "flows": {"flows": 120, "completed": 117, "dead": 2, "under_way": 1},
        "stages": [{**stage, "failures": 9, "deaths": 1}], "windows": [window(number) for number in (0, 1, 2, 5)],
        "latency": [latency], "dead_letters": [letters], "retention": [retention],
        "types": [{"type": "Order", "stages": 1, "keep_hours": 72, "guard": "proactive"}],
        "growth": {
            "days": 0.5, "waypoints_per_day": 2e6, "messages_per_day": 5e5, "envelope_bytes_per_day": 1e9,
            "store_bytes": 3 * 2**30, "free_bytes": 9 * 2**30, "store_bytes_per_day": 2**28, "measured_days": 3.0,
            "days_to_full": 36.0, "unknown": [],
        },
        "work": [{"node": "worker@here:1", "committed": 470}],
    }  # fmt: skip
    return AuditReport(**{**known, **more})


BAD = {
    "lost_count": 129,
    "lost": [{"stage": STAGE, "message_id": "m1", "flow_id": "order:7", "sent_at": BEGIN.isoformat()}],
    "doubled_count": 1,
    "doubled": [{"stage": STAGE, "message_id": "m2", "flow_id": "order:8", "how": "two commits of one message"}],
    "stuck_count": 1,
    "stuck": [{"stage": STAGE, "message_id": "m3", "flow_id": "order:9", "place": "delayed"}],
    "windows": [window(0, lost=129, state="final"), window(1, doubled=1), window(2, open=9, state="provisional")],
}


class Elements(HTMLParser):
    """The tags of a page with their attributes, and its figures by their names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.figures: dict[str, str] = {}
        self._name: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._name = dict(attrs).get("data-name")

    def handle_data(self, data: str) -> None:
        if self._name is not None:
            self.figures[self._name] = data
            self._name = None


def figures_of(found: dict[str, Any]) -> dict[str, str]:
    flows = found["flows"]
    numbers = {name: found[name] for name in ("waypoints", "lost_count", "doubled_count", "stuck_count")}
    return {name: f"{number:,}" for name, number in {**flows, **numbers}.items()}


@pytest.mark.parametrize("report", [a_report(), a_report(**BAD)], ids=["good", "bad"])
def test_the_figures_of_the_page_are_those_of_the_json(report: AuditReport) -> None:
    found = report.as_dict()
    page = report.as_html()
    assert Elements(page).figures == figures_of(found)
    for row in found["windows"]:
        title = f"{count(row['lost'])} lost, {count(row['doubled'])} doubled, {count(row['open'])} open"
        assert title in page
    for row in [*found["lost"], *found["doubled"], *found["stuck"]]:
        assert row["message_id"] in page
        assert row["flow_id"] in page


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "Every message was executed exactly once, or is accounted for"),
        ({"unseen": 2, "is_complete": False}, "Not proved yet"),
        ({"unseen": 2, "is_complete": False, "lost_count": 1}, "Not every message was executed exactly once"),
        ({"doubled_count": 1}, "Not every message was executed exactly once"),
    ],
)
def test_the_verdict_is_on_top(changes: dict[str, Any], verdict: str) -> None:
    page = a_report(**changes).as_html()
    assert page.index(verdict) < page.index("data-name")


def test_the_page_holds_no_script_and_names_nothing_that_it_would_load() -> None:
    elements = Elements(a_report(**BAD).as_html())
    assert not {"script", "img", "link", "iframe", "object", "image", "use"} & set(elements.tags)
    names = {name for name, _ in elements.attributes}
    assert not {"src", "href", "style", "srcset"} & names
    assert not [name for name in names if name.startswith("on")]
    page = a_report().as_html()
    assert "url(" not in page
    assert "@import" not in page
    assert re.search(r"default-src &#x27;none&#x27;; style-src &#x27;sha256-[\w+/]{43}=&#x27;", page)


@pytest.mark.parametrize("field", ["url", "stage", "node", "cause", "flow_id"])
def test_every_text_is_escaped(field: str) -> None:
    changes: dict[str, Any] = {}
    if field == "url":
        changes["url"] = HOSTILE
    elif field == "node":
        changes["work"] = [{"node": HOSTILE, "committed": 1}]
    elif field == "flow_id":
        changes["lost"] = [{**BAD["lost"][0], "flow_id": HOSTILE}]  # type: ignore[index]
    else:
        for name in ("stages", "latency", "dead_letters", "retention"):
            rows = a_report().as_dict()[name]
            changes[name] = [{**row, **({field: HOSTILE} if field in row else {})} for row in rows]
    page = a_report(**changes).as_html()
    assert "script" not in Elements(page).tags
    # Plots shorten long names.
    assert HOSTILE[:20] in unescape(page)


@pytest.mark.parametrize(
    ("changes", "says", "has_plot"),
    [
        ({}, "the disk is full in 36 days.", True),
        ({"days_to_full": 4_000.0, "store_bytes_per_day": 2**21}, "the disk is full in 4,000 days.", True),
        ({"days_to_full": None, "free_bytes": None, "unknown": ["the free space: <it>"]}, "space: &lt;it&gt;.", False),
        ({"days_to_full": None, "store_bytes_per_day": -5.0}, "It grows by -5 B a day", False),
    ],
    ids=["soon", "late", "unknown", "shrinks"],
)
def test_the_page_shows_when_the_disk_is_full(changes: dict[str, Any], says: str, has_plot: bool) -> None:
    page = a_report(growth={**a_report().growth, **changes}).as_html()
    assert says in page
    assert ("chart forecast" in page) == has_plot
    assert ("full in 36 days" in page) == (changes == {})


@pytest.mark.parametrize("windows", [[], [window(0)], [window(0, wait_p50=None, wait_p95=None, wait_p99=None)]])
def test_a_report_of_little_or_nothing_has_a_page(windows: list[dict[str, Any]]) -> None:
    assert "</html>" in a_report(windows=windows, latency=[], dead_letters=[], work=[], stages=[]).as_html()


def test_merged_windows_are_drawn_in_order_and_the_page_says_so() -> None:
    old = {**window(0), "window": (BEGIN - timedelta(days=9)).isoformat(), "until": BEGIN.isoformat()}
    note = "Older windows are merged"
    assert note in a_report(windows=[old, window(0), window(1)]).as_html()
    assert note not in a_report().as_html()


def test_a_notebook_shows_the_page_in_a_frame_that_runs_nothing() -> None:
    report = a_report(url=HOSTILE)
    shown = report._repr_html_()
    elements = Elements(shown)
    assert elements.tags == ["iframe"]
    attributes = dict(elements.attributes)
    # The empty value allows nothing: no script, no form, no access to the notebook.
    assert (attributes["sandbox"], attributes["srcdoc"]) == ("", page_of(report.as_dict()))
    assert frame_of(report.as_dict()) == shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count(1234567), "1,234,567"), (count(0.5), "0.50"), (milliseconds(None), "·"), (milliseconds(0.25), "0.25 ms"),
        (milliseconds(2400), "2.4 s"), (milliseconds(-3000), "-3 s"), (milliseconds(172_800_000), "2 d"),
        (size(512), "512 B"), (size(3 * 1024**3), "3 GiB"), (size(2**50), "1.02e+03 TiB"),
    ],
)  # fmt: skip
def test_figures_are_written_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


def test_scales_hold_all_values_and_have_round_ticks() -> None:
    scale = Linear(0, 83, 100, 0)
    assert (scale(0), scale(83), scale(999), scale.ticks(6)) == (100, 0, 0, [0, 20, 40, 60, 80])
    powers = logarithmic([3.0, 700.0], 0, 300)
    assert (powers(1), powers(10), powers(1000), powers.ticks()) == (0, 100, 300, [1, 10, 100, 1000])
    assert logarithmic([], 0, 100).ticks() == [1, 10]
    assert [milliseconds(each) for each in logarithmic([2e3, 9e7], 0, 100).ticks()] == [
        "1 s", "10 s", "1 min", "10 min", "1 h", "10 h", "1 d", "10 d",
    ]  # fmt: skip
    assert logarithmic([1e-4, 1e12], 0, 100)(1e12) == 100


def test_a_window_without_neighbours_is_a_dot_that_people_see() -> None:
    page = a_report(windows=[window(0), window(1), window(5)]).as_html()
    (line,) = re.findall(r'd="([^"]*)" class="line p50"', page)
    (dot,) = re.findall(r'd="([^"]*)" class="line alone p50"', page)
    assert re.fullmatch(r"M\S+ \S+ L\S+ \S+", line), line
    assert re.fullmatch(r"M\S+ \S+ h0.01", dot), dot
    assert "line alone" not in a_report(windows=[window(0), window(1)]).as_html()


def test_each_plot_scrolls_within_a_box_of_its_own() -> None:
    page = a_report(**BAD).as_html()
    assert page.count('class="chart ') == page.count('<div class="plot"><svg') > 5


@pytest.mark.more
def test_a_browser_shows_the_figures_and_requests_nothing(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    report = a_report(**BAD, work=[{"node": HOSTILE, "committed": 1}])
    page.write_text(report.as_html())
    seen = visit(page, tmp_path)
    assert Elements(seen.dom).figures == figures_of(report.as_dict())
    assert seen.requests == []


@pytest.mark.more
def test_a_page_that_requests_something_is_noticed(tmp_path: Path) -> None:
    """So the test above can fail."""
    page = tmp_path / "other.html"
    page.write_text('<img src="http://elsewhere.invalid/x.png">')
    assert any("elsewhere.invalid" in each for each in visit(page, tmp_path).requests)
