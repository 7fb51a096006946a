"""The examination of ActiveMQ for ``stagepost doctor``: its settings, the marks of the store, and targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from xml.etree import ElementTree as ET

from stagepost.broker.activemq.configuration import LOSES, faults_of
from stagepost.broker.activemq.frames import Frame
from stagepost.broker.activemq.messages import destination_of
from stagepost.broker.activemq.ownership import Marks
from stagepost.broker.activemq.session import StompSession
from stagepost.broker.activemq.subscriptions import ANSWER_SECONDS
from stagepost.flow.clock import SECOND
from stagepost.ports.broker import EdgeAddresses, is_topic
from stagepost.ports.findings import HOUR, Culprit, Finding, critical, fine, span, warning

ROUNDS = 5
# Without no-delay the second of two answers waits for the other side's acknowledgement of the first, for 40 ms.
NAGLE_SECONDS = 0.02
MILLISECOND = 1_000
UNREAD_SECONDS = HOUR
NOT_CHECKED = "whether confirmed messages are on the disk, whether a full broker answers, and whether messages expire"


class Examination:
    """One look at the broker. ``file`` is its configuration file; None where the URL names none."""

    def __init__(
        self,
        session: StompSession,
        marks: Marks,
        monotonic: Callable[[], float],
        file: Path | None,
        addresses: EdgeAddresses,
        now: int,
    ) -> None:
        self._session = session
        self._marks = marks
        self._monotonic = monotonic
        self._file = file
        self._addresses = addresses
        self._now = now

    def findings(self) -> list[Finding]:
        return [self._check_marks(), *self._check_settings(), self._check_targets()]

    def _check_marks(self) -> Finding:
        wrong: list[Culprit] = []
        # The queues of replies have no mark, because their name has the store's uuid.
        for each in [each for each in self._addresses.received if not each.startswith("_")]:
            owner = self._marks.owner(each)
            if owner != self._addresses.store:
                wrong.append({"address": each, "store": owner or "none"})
        if not wrong:
            return fine("broker-queues", f"{len(self._addresses.received)} addresses have this store's mark")
        return critical(
            "broker-queues",
            "addresses of this store have no mark, or that of another store",
            "Let all replicas share one store. If the other is gone, run: stagepost release ADDRESS --store UUID. A "
            "worker sets a missing mark when it starts.",
            wrong,
        )

    def _check_settings(self) -> list[Finding]:
        reason = "the broker URL names no configuration file"
        if self._file is not None:
            try:
                faults = faults_of(self._file)
            except (OSError, ET.ParseError) as error:
                reason = f"{self._file} cannot be read: {error}"
            else:
                if not faults:
                    return [fine("broker-settings", f"{self._file} has no setting that loses messages or slows them")]
                grade = critical if any(each.effect == LOSES for each in faults) else warning
                return [
                    grade(
                        "broker-settings",
                        f"{self._file} has settings that lose messages or slow them down",
                        "Correct each setting, and restart the broker. See docs/activemq.md.",
                        [each._asdict() for each in faults],
                    )
                ]
        return [
            self._check_delay(),
            warning(
                "broker-unchecked",
                f"not checked at {self._session.place}: {NOT_CHECKED}: {reason}",
                "Run the doctor where it can read the broker's activemq.xml, and add config=/PATH/activemq.xml to the "
                "parameters of the broker URL.",
            ),
        ]

    def _check_delay(self) -> Finding:
        """Compare one answer with two in a row."""
        begin, end = (Frame(each, {"transaction": "doctor"}) for each in ("BEGIN", "ABORT"))
        one, two = [], []
        for _ in range(ROUNDS):
            one.append(self._seconds_of([begin]) + self._seconds_of([end]))
            two.append(self._seconds_of([begin, end]))
        slower = median(two) - median(one)
        seen = f"two answers take {1000 * median(two):.1f} ms together, and {1000 * median(one):.1f} ms one by one"
        if slower < NAGLE_SECONDS:
            return fine("broker-settings", seen)
        return warning(
            "broker-settings", seen, "Add transport.tcpNoDelay=true to the uri of the broker's STOMP connector."
        )

    def _seconds_of(self, frames: list[Frame]) -> float:
        begin = self._monotonic()
        self._session.demand(frames, ANSWER_SECONDS)
        return self._monotonic() - begin

    def _check_targets(self) -> Finding:
        unread: list[Culprit] = []
        for each in self._addresses.sent:
            head = None if is_topic(each) else self._marks.head_of(destination_of(each))
            stamp = "" if head is None else head.headers.get("timestamp", "")
            age = self._now - int(stamp) * MILLISECOND if stamp.isdecimal() else 0
            if age > UNREAD_SECONDS * SECOND:
                unread.append({"target": each, "oldest_seconds": age / SECOND})
        if not unread:
            return fine("broker-targets", f"{len(self._addresses.sent)} targets have no message older than an hour")
        return warning(
            "broker-targets",
            f"messages to other services wait for {span(max(each['oldest_seconds'] for each in unread))}",
            "Start the service that reads the target, or correct its name: ActiveMQ never tells that nobody reads.",
            unread,
        )
