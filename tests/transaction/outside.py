"""Something outside that a stage calls: it counts each call, and fails when it is told to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from stagepost import App, Effect


@dataclass
class CaptureRequest:
    hold: str
    amount: int


@dataclass
class Capture:
    id: str


@dataclass
class Cards:
    """A card processor. ``before`` and ``after`` run before and after a call takes effect, and may raise.

    ``captured`` has the captures by their keys, one entry for each call that took effect.
    """

    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    captured: list[tuple[str, Capture]] = field(default_factory=list)
    voided: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    before_void: Callable[[], None] = lambda: None

    def capture(self, request: CaptureRequest, key: str) -> Capture:
        self.calls["call"] += 1
        self.before()
        capture = Capture(f"c{len(self.captured) + 1}")
        self.captured.append((key, capture))
        self.after()
        return capture

    def find(self, key: str) -> Capture | None:
        self.calls["query"] += 1
        return next((capture for known, capture in self.captured if known == key), None)

    def void(self, capture: Capture) -> None:
        self.calls["undo"] += 1
        self.before_void()
        self.voided.append(capture.id)

    @property
    def kept(self) -> list[str]:
        """The captures that were not voided."""
        return [capture.id for _, capture in self.captured if capture.id not in self.voided]


def card_of(
    app: App, cards: Cards, *, has_query: bool = True, has_undo: bool = False
) -> Effect[CaptureRequest, Capture]:
    def capture(request: CaptureRequest, *, key: str) -> Capture:
        return cards.capture(request, key)

    def find(request: CaptureRequest, *, key: str) -> Capture | None:
        return cards.find(key)

    def void(request: CaptureRequest, capture: Capture) -> None:
        cards.void(capture)

    return app.effect("card", call=capture, query=find if has_query else None, undo=void if has_undo else None)
