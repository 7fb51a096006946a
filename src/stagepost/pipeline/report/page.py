"""The audit as one page of HTML: no script, no request, and every text escaped.

A policy in the page forbids all requests. It allows the one style sheet within the page, by its digest.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Iterable, Sequence
from typing import Any

from stagepost.pipeline.report import plots
from stagepost.pipeline.report.markup import Markup, element, join
from stagepost.pipeline.report.scale import count, milliseconds, moment, size
from stagepost.ports.findings import counted

Facts = dict[str, Any]
Rows = list[dict[str, Any]]

HEIGHT_IN_NOTEBOOK = 900
STAGE_COUNTS = ("sent", "committed", "expired", "edited", "dead", "open", "failures", "deaths")
WINDOW_COUNTS = ("flows", "sent", "committed", "expired", "edited", "dead", "open", "lost", "doubled")
WARNED = {"dead", "lost", "doubled", "deaths"}


def page_of(found: Facts) -> str:
    """Return the page of an audit, from the report as a dict: ``AuditReport.as_dict``."""
    style = importlib.resources.files("stagepost.pipeline.report").joinpath("style.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element(
            "meta",
            http_equiv="Content-Security-Policy",
            content=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        ),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"Audit of {found['url']}"),
        element("style", Markup(style)),
    )
    body = element("body", element("main", *_sections(found)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def frame_of(found: Facts) -> str:
    """Return the page within a frame, for a notebook: its styles stay within, and it runs no script."""
    frame = element(
        "iframe",
        srcdoc=page_of(found),
        sandbox="",
        title=f"Audit of {found['url']}",
        width="100%",
        height=HEIGHT_IN_NOTEBOOK,
        frameborder=0,
    )
    return str(frame)


def _sections(found: Facts) -> Iterable[Markup]:
    yield element("h1", "Stagepost audit of ", element("b", found["url"]), f" · {moment(found['at'])}")
    yield _verdict(found)
    yield _tiles(found)
    yield from _findings(found)
    if found["windows"]:
        yield _throughput(found)
        yield _windows(found)
        yield _latency(found)
        yield _stages(found)
    yield _letters(found)
    if found["windows"]:
        yield _retention(found)
        yield _growth(found)
        yield _work(found)
    yield element("footer", "Windows hold the flows that began in them. All times are UTC.")


def _verdict(found: Facts) -> Markup:
    if not found["clean"]:
        text, mark = "Not every message was executed exactly once", "M17 17 L35 35 M35 17 L17 35"
        state = "bad"
    elif not found["complete"]:
        text, mark = "Not proved yet", "M26 14 V28 M26 37 V37.1"
        state = "wait"
    else:
        text, mark = "Every message was executed exactly once, or is accounted for", "M15 27 L23 35 L38 18"
        state = "good"
    more = f"{count(found['lost_count'])} lost, {count(found['doubled_count'])} doubled"
    more += f", proved up to {moment(found['seen_until'])}"
    if found["has_gap"]:
        more += ". Earlier waypoints were purged or archived, and are not covered"
    if found["continued_from"] is not None:
        more += ", continued from an earlier audit"
    if found["held"]:
        more += f". {count(found['held'])} started flows are not in the queue yet"
    if found["unseen"]:
        more += f". {count(found['unseen'])} waypoints are not covered: an open transaction, or written meanwhile"
    circle = element("circle", cx=26, cy=26, r=26)
    icon = element("svg", circle, element("path", d=mark), view_box="0 0 52 52", aria_hidden="true")
    return element(
        "section", icon, element("div", element("strong", text), element("span", more)), class_=f"verdict {state}"
    )


def _tiles(found: Facts) -> Markup:
    flows = found["flows"]
    tiles = (
        ("waypoints", "waypoints", found["waypoints"], False),
        ("flows", "flows", flows["flows"], False),
        ("completed", "completed", flows["completed"], False),
        ("under way", "under_way", flows["under_way"], False),
        ("dead", "dead", flows["dead"], flows["dead"] > 0),
        ("lost", "lost_count", found["lost_count"], found["lost_count"] > 0),
        ("doubled", "doubled_count", found["doubled_count"], found["doubled_count"] > 0),
        ("stuck", "stuck_count", found["stuck_count"], found["stuck_count"] > 0),
        *(
            (label, name, found[name], False)
            for label, name in (("in doubt", "in_doubt_count"), ("doubted", "doubted_count"))
            if found[name]
        ),
    )
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", label),
                element("dd", count(number), data_name=name),
                class_="bad" if is_bad else None,
            )
            for label, name, number, is_bad in tiles
        ),
        class_="tiles",
    )


def _findings(found: Facts) -> Iterable[Markup]:
    texts = {
        "lost": "These messages were sent, and no table holds them. No later waypoint explains it.",
        "doubled": "These messages were executed or sent twice.",
        "in_doubt": "A direct mode sent these messages, and no broker confirmed them. They may have arrived.",
        "stuck": "These messages have waited or run for longer than the limit. Nothing is lost.",
    }
    for name, text in texts.items():
        rows = found[name]
        if not rows:
            continue
        columns = ("stage", "flow", "message", "details")
        body = [
            (
                row["stage"],
                element("code", row["flow_id"]),
                element("code", row["message_id"]),
                row.get("how") or row.get("place") or f"sent {moment(row['sent_at'])}",
            )
            for row in rows
        ]
        more = (
            f" The page lists {len(rows)} of {count(found[f'{name}_count'])}."
            if len(rows) < found[f"{name}_count"]
            else ""
        )
        yield _section(f"{name.capitalize()} messages", text + more, _table(columns, body, texts=4))


def _throughput(found: Facts) -> Markup:
    text = "Messages a second, by the time at which their flow began."
    if not plots.TimeAxis(found["windows"]).is_by_time:
        text += " Older windows are merged, so the axis is not to scale."
    legend = _legend(("blue", "sent"), ("teal", "committed"))
    return _section("Throughput", text, legend, plots.throughput(found["windows"]))


def _windows(found: Facts) -> Markup:
    legend = _legend(("teal", "final and balanced"), ("grey", "provisional"), ("red", "lost"), ("amber", "doubled"))
    body = [
        (
            moment(row["window"]),
            *(_number(row[name], name in WARNED) for name in WINDOW_COUNTS),
            element("span", row["state"], class_=f"badge {row['state']}"),
        )
        for row in reversed(found["windows"])
    ]
    table = element(
        "details",
        element("summary", f"{counted(len(body), 'window')} as a table"),
        _table(("window", *WINDOW_COUNTS, "state"), body),
    )
    return _section(
        "Losses and duplicates",
        "A window is final when the audit read beyond its end and the lateness, and nothing of it waits or runs.",
        legend,
        plots.verdicts(found["windows"]),
        *(
            element("p", f"Reopened: the window from {moment(row['window'])} was final, and is now {row['state']}.")
            for row in found["reopened"]
        ),
        table,
    )


def _latency(found: Facts) -> Markup:
    if not found["latency"]:
        return Markup("")
    waits = [_legend(("teal", "p50"), ("blue", "p95"), ("violet", "p99")), plots.wait_percentiles(found["windows"])]
    return _section(
        "Latency of hops",
        "The wait in the queue, from sending to the first claim, over all stages.",
        *(waits if any(row["wait_p50"] for row in found["windows"]) else ()),
        element(
            "p", "Per stage: the large dot is the median, the small one the 95th, and the end the 99th percentile."
        ),
        _legend(("blue", "wait in the queue"), ("teal", "run of the handler")),
        plots.stage_latency(found["latency"]),
    )


def _stages(found: Facts) -> Markup:
    parts = ("committed", "expired", "edited", "dead", "open")
    body = [
        (
            row["stage"],
            plots.share_bar([(name, row[name]) for name in parts]),
            *(_number(row[name], name in WARNED) for name in STAGE_COUNTS),
        )
        for row in found["stages"]
    ]
    legend = _legend(
        ("teal", "committed"), ("grey", "expired"), ("violet", "edited"), ("red", "dead"), ("amber", "open")
    )
    text = "sent = committed + expired + edited + dead + open, for each stage."
    return _section("Stages", text, legend, _table(("stage", "", *STAGE_COUNTS), body))


def _letters(found: Facts) -> Markup:
    groups = found["dead_letters"]
    if not groups:
        return _section("Dead letters", "There are none.")
    bars = [(each["stage"], each["letters"], count(each["letters"]), each["verdict"]) for each in groups[:12]]
    body = [
        (
            element("code", each["fingerprint"]),
            each["stage"],
            each["reason"],
            element("span", each["verdict"], class_=f"badge {each['verdict']}"),
            _number(each["letters"]),
            moment(each["last_at"]),
            element("span", each["cause"], class_="long"),
        )
        for each in groups
    ]
    return _section(
        "Dead letters",
        "Poison: most messages of the stage end well, so these are at fault. Outage: most of them die, so the stage or "
        "a service that it calls is at fault.",
        _legend(("violet", "poison"), ("red", "outage"), ("grey", "unclear")),
        plots.bars(bars),
        _table(("group", "stage", "reason", "verdict", "letters", "latest", "cause"), body, texts=4, last_is_long=True),
    )


def _retention(found: Facts) -> Markup:
    body = [
        (
            row["stage"],
            _number(row["duplicates"]),
            milliseconds(row["lag_p99"]),
            milliseconds(row["lag_max"]),
            milliseconds(row["slowest_delivery"]),
            element("b", f"{count(row['keep_hours'])} h"),
            _kept(row),
            size(row["bytes"]),
            element("span", row["guard"], title=row["guard_reason"], class_=f"badge {row['guard']}"),
        )
        for row in found["retention"]
    ]
    names = ("stage", "late copies", "lag p99", "lag max", "slowest delivery", "keep ids for", "now", "about", "guard")
    types = [
        (row["type"], count(row["stages"]), element("b", f"{count(row['keep_hours'])} h"), row["guard"])
        for row in found["types"]
    ]
    return _section(
        "Retention and guards",
        "Keep the ids of processed messages for as long as a copy may still arrive: three times the lag of late "
        "copies, the latest copy, the slowest delivery, or the longest outage, whichever is longest. A stage that has "
        "a guard should have the one that is cheaper for it.",
        _table(names, body),
        *(
            [element("p", "By message type:"), _table(("type", "stages", "keep ids for", "guard"), types)]
            if types
            else ()
        ),
    )


def _kept(row: Facts) -> Markup:
    if row["kept_hours"] is None:
        return element("span", "·", class_="zero")
    return element("span", f"{count(row['kept_hours'])} h", class_="warn" if row["is_too_short"] else None)


def _growth(found: Facts) -> Markup:
    growth = found["growth"]
    journal = (
        f"The journal grows by {count(round(growth['waypoints_per_day']))} waypoints a day, for "
        f"{count(round(growth['messages_per_day']))} messages with {size(growth['envelope_bytes_per_day'])} of "
        f"envelopes, over {growth['days']:.3g} days."
    )
    texts = [journal]
    rate, days = growth["store_bytes_per_day"], growth["days_to_full"]
    if growth["store_bytes"] is not None:
        texts.append(f"The store takes {size(growth['store_bytes'])}.")
    if rate is not None:
        how = "the size over the time of its journal"
        if growth["measured_days"] is not None:
            how = f"measured over {growth['measured_days']:.3g} days"
        texts.append(f"It grows by {size(rate)} a day ({how}).")
    if days is not None:
        texts.append(f"With {size(growth['free_bytes'])} free, the disk is full in {count(days)} days.")
    plot = (
        []
        if days is None
        else [_legend(("blue", "the store"), ("red", "the room of the disk")), plots.forecast(growth)]
    )
    unknown = [element("p", f"Unknown: {each}.") for each in growth["unknown"]]
    return _section("Growth", " ".join(texts), *plot, *unknown)


def _work(found: Facts) -> Markup:
    rows = sorted(found["work"], key=lambda row: -row["committed"])[:20]
    bars = [(row["node"], row["committed"], count(row["committed"]), "work") for row in rows]
    more = f" The page shows the first 20 of {len(found['work'])}." if len(found["work"]) > len(rows) else ""
    return _section("Work", f"Committed messages by process.{more}", plots.bars(bars))


def _section(title: str, text: str, *content: object) -> Markup:
    return element("section", element("h2", title), element("p", text), *content)


def _legend(*entries: tuple[str, str]) -> Markup:
    def key(colour: str) -> Markup:
        mark = element("rect", width=12, height=12, rx=3, class_=f"key {colour}")
        return element("svg", mark, view_box="0 0 12 12", aria_hidden="true")

    return element("ul", *(element("li", key(colour), text) for colour, text in entries), class_="legend")


def _number(value: int, is_warning: bool = False) -> Markup:
    return element("span", count(value), class_="zero" if not value else "warn" if is_warning else None)


def _table(
    names: Sequence[str], rows: Iterable[Sequence[object]], *, texts: int = 1, last_is_long: bool = False
) -> Markup:
    def kind(index: int) -> str | None:
        if last_is_long and index == len(names) - 1:
            return "text long"
        return "text" if index < texts else None

    head = element("tr", *(element("th", name, class_=kind(index)) for index, name in enumerate(names)))
    body = (element("tr", *(element("td", cell, class_=kind(index)) for index, cell in enumerate(row))) for row in rows)
    return element("div", element("table", element("thead", head), element("tbody", join(body))), class_="scroll")
