"""The plots of the report, as SVG. Colours come from the page's classes, so that they suit light and dark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from stagepost.pipeline.report.markup import Markup, element, join
from stagepost.pipeline.report.scale import (
    Linear,
    Logarithmic,
    count,
    logarithmic,
    milliseconds,
    moment,
    short,
    size,
    tick_time,
)

Rows = list[dict[str, Any]]

WIDTH, HEIGHT = 1000, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 14, 28
BAR_HEIGHT = 22
FORECAST_DAYS_MAX = 365


class TimeAxis:
    """Windows from left to right: by time if all are of one width, else in order, because old ones are merged."""

    def __init__(self, windows: Rows) -> None:
        self._begins = [datetime.fromisoformat(row["window"]).timestamp() for row in windows]
        self._ends = [datetime.fromisoformat(row["until"]).timestamp() for row in windows]
        widths = {round(end - begin) for begin, end in zip(self._begins, self._ends, strict=True)}
        self.is_by_time = len(widths) == 1
        last = self._ends[-1] if self.is_by_time else len(windows)
        self._scale = Linear(self._begins[0] if self.is_by_time else 0, last, LEFT, WIDTH - RIGHT)

    def left(self, index: int) -> float:
        return self._scale(self._begins[index] if self.is_by_time else index)

    def right(self, index: int) -> float:
        return self._scale(self._ends[index] if self.is_by_time else index + 1)

    def middle(self, index: int) -> float:
        return (self.left(index) + self.right(index)) / 2

    def seconds(self, index: int) -> float:
        return self._ends[index] - self._begins[index]

    def follows(self, index: int) -> bool:
        """Return whether the window begins where the one before it ended, so that a line connects them."""
        return index > 0 and (not self.is_by_time or self._begins[index] - self._ends[index - 1] < 1)

    def labels(self, height: float) -> Markup:
        span = self._ends[-1] - self._begins[0]
        if self.is_by_time:
            step = _time_step(span / 7)
            first = -(-self._begins[0] // step) * step
            marks = [(first + number * step) for number in range(int((self._ends[-1] - first) / step) + 1)]
            places = [(self._scale(at), at) for at in marks]
        else:
            chosen = range(0, len(self._begins), max(1, len(self._begins) // 7))
            places = [(self.left(index), self._begins[index]) for index in chosen]
        return join(
            element("text", tick_time(at, span), x=x, y=height - 8, class_="tick", text_anchor="middle")
            for x, at in places
            if LEFT + 20 <= x <= WIDTH - RIGHT - 30
        )


def throughput(windows: Rows) -> Markup:
    """Return the messages a second that were sent and committed, by the window in which their flow began."""
    axis = TimeAxis(windows)
    rates = {
        name: [row[name] / axis.seconds(index) for index, row in enumerate(windows)] for name in ("sent", "committed")
    }
    scale = Linear(0, max(*rates["sent"], *rates["committed"], 1e-9) * 1.08, HEIGHT - BOTTOM, TOP)
    areas = [
        _steps(axis, rates["sent"], scale, "sent"),
        _steps(axis, rates["committed"], scale, "committed"),
    ]
    titles = [
        f"{moment(row['window'])}: {count(row['sent'])} sent, {count(row['committed'])} committed, "
        f"{rates['committed'][index]:.3g} a second"
        for index, row in enumerate(windows)
    ]
    return _chart("throughput", _grid(scale.ticks(6), scale, short), *areas, axis.labels(HEIGHT), _hover(axis, titles))


def wait_percentiles(windows: Rows) -> Markup:
    """Return the percentiles of the wait in the queue, over the windows, on a logarithmic scale."""
    axis = TimeAxis(windows)
    names = ("wait_p50", "wait_p95", "wait_p99")
    scale = logarithmic([row[name] for row in windows for name in names if row[name]], HEIGHT - BOTTOM, TOP)
    lines = [_line(axis, [row[name] for row in windows], scale, name.removeprefix("wait_")) for name in names]
    titles = [
        f"{moment(row['window'])}: " + ", ".join(f"{name[5:]} {milliseconds(row[name])}" for name in names)
        for row in windows
    ]
    return _chart("waits", _grid(scale.ticks(), scale, milliseconds), *lines, axis.labels(HEIGHT), _hover(axis, titles))


def verdicts(windows: Rows) -> Markup:
    """Return a strip of the windows: balanced, open, or with lost or doubled messages, and the number of these."""
    axis = TimeAxis(windows)
    worst = max((row["lost"] + row["doubled"] for row in windows), default=0)
    strip, height = 34, 130 if worst else 84
    base = height - BOTTOM - strip - 8
    scale = Linear(0, max(worst, 1), base, TOP)
    cells, bars = [], []
    for index, row in enumerate(windows):
        x, width = axis.left(index), max(axis.right(index) - axis.left(index) - 0.5, 0.8)
        bad = row["lost"] + row["doubled"]
        state = "bad" if bad else row["state"]
        title = (
            f"{moment(row['window'])}: {count(row['lost'])} lost, {count(row['doubled'])} doubled, "
            f"{count(row['open'])} open of {count(row['sent'])} sent, {row['state']}"
        )
        cell = element("title", title)
        cells.append(
            element("rect", cell, x=x, y=base + 8, width=width, height=strip, class_=f"window {state}", rx=1.5)
        )
        top = float(base)
        for name in ("lost", "doubled"):
            if row[name]:
                tall = base - scale(row[name])
                top -= tall
                bar = max(width, 3)
                bars.append(element("rect", cell, x=x, y=round(top, 2), width=bar, height=round(tall, 2), class_=name))
    grid = _grid([worst] if worst else [], scale, short)
    return _chart("verdicts", grid, *bars, *cells, axis.labels(height), height=height)


def stage_latency(latency: Rows) -> Markup:
    """Return a row per stage: the wait and the run, each from p50 over p95 to p99, on one logarithmic scale."""
    values = [row[f"{name}_{share}"] for row in latency for name in ("wait", "run") for share in ("p50", "p99")]
    left, row_height = 260, 44
    height = len(latency) * row_height + 34
    scale = logarithmic([value for value in values if value], left, WIDTH - 90)
    parts = [
        element("line", x1=scale(tick), x2=scale(tick), y1=4, y2=height - 26, class_="grid") for tick in scale.ticks()
    ]
    parts += [
        element("text", milliseconds(tick), x=scale(tick), y=height - 8, class_="tick", text_anchor="middle")
        for tick in scale.ticks()
    ]
    for index, row in enumerate(latency):
        y = index * row_height + 14
        parts.append(element("text", _cut(row["stage"]), x=left - 14, y=y + 14, class_="name", text_anchor="end"))
        for offset, name in enumerate(("wait", "run")):
            parts.append(_range(row, name, y + offset * 13, scale))
    return _chart("latency", *parts, height=height)


def bars(rows: Sequence[tuple[str, float, str, str]]) -> Markup:
    """Return horizontal bars of (name, value, label, class), all on one scale."""
    left = 260
    scale = Linear(0, max((value for _, value, _, _ in rows), default=0) or 1, 0, WIDTH - left - 150)
    parts = []
    for index, (name, value, label, colour) in enumerate(rows):
        y = index * (BAR_HEIGHT + 8) + 2
        parts.append(element("text", _cut(name), x=left - 14, y=y + 16, class_="name", text_anchor="end"))
        width = max(scale(value), 2)
        parts.append(element("rect", x=left, y=y, width=width, height=BAR_HEIGHT, rx=3, class_=f"bar {colour}"))
        parts.append(element("text", label, x=left + width + 8, y=y + 16, class_="value"))
    return _chart("bars", *parts, height=len(rows) * (BAR_HEIGHT + 8) + 4)


def forecast(growth: Mapping[str, Any]) -> Markup:
    """Return the size of the store over the next days, at its present growth, below the room of its disk."""
    used, room = growth["store_bytes"], growth["store_bytes"] + growth["free_bytes"]
    full = growth["days_to_full"]
    days = min(full * 1.15, FORECAST_DAYS_MAX)
    across, scale = Linear(0, days, LEFT, WIDTH - RIGHT), Linear(0, room * 1.12, HEIGHT - BOTTOM, TOP)
    end = min(days, full)
    top = used + growth["store_bytes_per_day"] * end
    path = f"M{LEFT} {scale(0):g} V{scale(used):g} L{across(end):g} {scale(top):g} V{scale(0):g} Z"
    ticks = [tick for tick in across.ticks(8) if LEFT + 20 <= across(tick) <= WIDTH - RIGHT - 30]
    marks = (
        element("text", f"{count(tick)} d", x=across(tick), y=HEIGHT - 8, class_="tick", text_anchor="middle")
        for tick in ticks
    )
    found = [
        _grid([room / 4, room / 2, room * 3 / 4, room], scale, size),
        element(
            "path", element("title", f"{size(used)} now, {size(top)} in {count(end)} days"), d=path, class_="area size"
        ),
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=scale(room), y2=scale(room), class_="line room"),
        *marks,
    ]
    if full <= days:
        found.append(element("circle", cx=across(full), cy=scale(room), r=5, class_="dot full"))
        text = f"full in {count(full)} days"
        found.append(element("text", text, x=across(full), y=scale(room) - 10, class_="name", text_anchor="end"))
    return _chart("forecast", *found)


def share_bar(parts: Sequence[tuple[str, int]]) -> Markup:
    """Return a small bar whose parts have the widths of their counts."""
    total = sum(number for _, number in parts) or 1
    at, drawn = 0.0, []
    for name, number in parts:
        width = number / total * 100
        if width:
            title = element("title", f"{count(number)} {name}")
            drawn.append(element("rect", title, x=round(at, 3), y=0, width=round(width, 3), height=10, class_=name))
        at += width
    return element("svg", *drawn, view_box="0 0 100 10", preserve_aspect_ratio="none", class_="share", role="img")


def _chart(name: str, *content: object, height: float = HEIGHT) -> Markup:
    """Return the plot in a box of its own, which scrolls on a narrow screen while the text beside it stays."""
    plot = element("svg", *content, view_box=f"0 0 {WIDTH} {height:g}", class_=f"chart {name}", role="img")
    return element("div", plot, class_="plot")


def _grid(ticks: Sequence[float], scale: Callable[[float], float], label: Callable[[float], str]) -> Markup:
    return join(
        join(
            (
                element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=scale(tick), y2=scale(tick), class_="grid"),
                element("text", label(tick), x=LEFT - 8, y=scale(tick) + 4, class_="tick", text_anchor="end"),
            )
        )
        for tick in ticks
    )


def _steps(axis: TimeAxis, values: Sequence[float], scale: Linear, name: str) -> Markup:
    """Return an area whose top is a step a window."""
    base = scale(0)
    path: list[str] = []
    for index, value in enumerate(values):
        if not axis.follows(index):
            path.append(f"L{axis.left(index):g} {base:g}" if path else f"M{axis.left(index):g} {base:g}")
        path.append(f"L{axis.left(index):g} {scale(value):g} L{axis.right(index):g} {scale(value):g}")
        if index + 1 == len(values) or not axis.follows(index + 1):
            path.append(f"L{axis.right(index):g} {base:g}")
    return element("path", d=" ".join(path), class_=f"area {name}")


def _line(axis: TimeAxis, values: Sequence[float | None], scale: Logarithmic, name: str) -> Markup:
    path: list[str] = []
    dots: list[str] = []
    is_drawing = False
    for index, value in enumerate(values):
        if value is None:
            is_drawing = False
            continue
        joined = is_drawing and axis.follows(index)
        path.append(f"{'L' if joined else 'M'}{axis.middle(index):g} {scale(value):g}")
        is_last = index + 1 == len(values) or values[index + 1] is None or not axis.follows(index + 1)
        if not joined and is_last:
            # A window without neighbours is a dot: a line of no length with round ends.
            dots.append(f"{path.pop()} h0.01")
        is_drawing = True
    parts = ((path, f"line {name}"), (dots, f"line alone {name}"))
    return join(element("path", d=" ".join(drawn), class_=kind) for drawn, kind in parts if drawn)


def _range(row: dict[str, Any], name: str, y: float, scale: Logarithmic) -> Markup:
    low, middle, high = (row[f"{name}_{share}"] for share in ("p50", "p95", "p99"))
    if low is None:
        return Markup("")
    text = f"{row['stage']}, {name}: p50 {milliseconds(low)}, p95 {milliseconds(middle)}, p99 {milliseconds(high)}"
    return element(
        "g",
        element("title", text),
        element("line", x1=scale(low), x2=scale(high), y1=y + 4, y2=y + 4, class_=f"range {name}"),
        element("circle", cx=scale(low), cy=y + 4, r=4.5, class_=f"dot {name}"),
        element("circle", cx=scale(middle), cy=y + 4, r=3, class_=f"dot {name}"),
        element("text", milliseconds(high), x=scale(high) + 8, y=y + 8, class_="tick"),
    )


def _hover(axis: TimeAxis, titles: Sequence[str]) -> Markup:
    """Return invisible columns that show a window's figures when the pointer rests on it."""
    return join(
        element(
            "rect",
            element("title", title),
            x=axis.left(index),
            y=TOP,
            width=max(round(axis.right(index) - axis.left(index), 2), 0.5),
            height=HEIGHT - TOP - BOTTOM,
            class_="hover",
        )
        for index, title in enumerate(titles)
    )


def _cut(name: str, length: int = 34) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _time_step(seconds: float) -> float:
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172_800)
    return next((step for step in steps if step >= seconds), 86_400 * -(-seconds // 86_400))
