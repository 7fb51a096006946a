"""Examine a store once, and report its present and coming problems."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from random import Random

from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import BrokerError
from stagepost.flow.target import is_outbound
from stagepost.liveness.detector import PAUSED_AFTER_SECONDS
from stagepost.liveness.incarnation import is_edge
from stagepost.ports.broker import EdgeAddresses, ExaminableConnection
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.ports.declarations import Undeclared
from stagepost.ports.edge import EdgeView
from stagepost.ports.findings import (
    HOUR,
    MINUTE,
    SEVERITIES,
    Finding,
    Severity,
    counted,
    critical,
    fine,
    graded,
    span,
    warning,
)
from stagepost.ports.health import Backlogs, Heart, Paused, QueueHealth, StoreHealth, Unseen
from stagepost.ports.outbox import Backlog
from stagepost.ports.registry import driver_of
from stagepost.runtime.declarations import holders, is_for_a_stage, processes_of
from stagepost.runtime.edge import ROLE as BROKER_ROLE

BROKER_SECONDS = 5.0
READY_SECONDS = HOUR
OVERDUE_SECONDS = 5 * MINUTE
OVERDUE_SECONDS_WITHOUT_WORKERS = HOUR
PAUSED_SECONDS_CRITICAL = HOUR
UNSENT_SECONDS_WARNING = 5 * MINUTE
UNSENT_SECONDS_CRITICAL = HOUR

START_WORKERS = "Start workers of the app that declares the stage: stagepost worker MODULE:APP."
SEND = (
    "Start a worker of the app that has this database, with the same queue= or broker= as before: it sends them. If a "
    "worker runs, its log shows the errors of the queue's database, or of the broker."
)


@dataclass(frozen=True, slots=True)
class Report:
    """The findings on one store. ``place`` is None if the store cannot be examined; the only finding says why."""

    place: str | None
    findings: list[Finding]
    edge: EdgeAddresses | None = None

    @property
    def severity(self) -> Severity:
        return max((each.severity for each in self.findings), key=SEVERITIES.index)


def examine(url: str, source: str, clock: Clock, *, thorough: bool = False) -> Report:
    """Examine the store at ``url``, which comes from the setting ``source``.

    Raises ``DeclarationError`` for a URL that names no store.
    """
    health = driver_of(url).examine(url, source, clock, thorough=thorough)
    return Report(health.place, diagnose(health, clock.now()), health.edge)


def examine_broker(url: str, clock: Clock, edge: EdgeAddresses | None, targets: Sequence[str] = ()) -> list[Finding]:
    """Connect to the broker, and report its settings that break a promise. Raises ``DeclarationError``.

    ``targets``  addresses of other services that the app sends to, beside those for which messages wait
    """
    broker = broker_driver_of(url).broker(url, clock, Random())  # noqa: S311 - the order of the hosts
    try:
        with closing(broker.connect(BROKER_SECONDS)) as connection:
            features = connection.features
            found = [fine("broker", f"{broker.url} answers: {features.product} {features.version}")]
            if edge is not None and isinstance(connection, ExaminableConnection):
                addresses = edge._replace(sent=sorted({*edge.sent, *targets}))
                found += connection.examine(addresses, clock.now())
    except BrokerError as error:
        remedy = "Start the broker, or correct broker=, STAGEPOST_BROKER or stagepost.toml. Stages run meanwhile."
        return [critical("broker", str(error), remedy)]
    return found


def diagnose(health: StoreHealth, now: int) -> list[Finding]:
    """Return the findings in order of severity, the worst first, and then in order of the checks."""
    found = list(health.findings)
    if health.queue is not None:
        found += check_queue(health.queue, now)
    if health.views is not None and health.queue is not None:
        found += check_views(health.views, health.queue, now)
    if health.paused is not None:
        found.append(check_paused(health.paused, now))
    if health.undeclared is not None and health.queue is not None:
        found.append(check_undeclared(health.undeclared, health.queue))
    if health.backlogs is not None:
        found += check_backlogs(health.backlogs, now)
    found += check_unseen(health.unseen)
    return sorted(found, key=lambda each: -SEVERITIES.index(each.severity))


def check_queue(queue: QueueHealth, now: int) -> list[Finding]:
    return [
        check_workers(queue),
        check_orphans(queue),
        check_ready(queue, now),
        check_delayed(queue, now),
        *check_outbound(queue),
        check_suspects(queue),
        check_letters(queue),
    ]


def is_alive(heart: Heart) -> bool:
    return heart.is_locked and not is_paused(heart)


def is_paused(heart: Heart) -> bool:
    return heart.is_locked and heart.silent_seconds is not None and heart.silent_seconds > PAUSED_AFTER_SECONDS


def check_workers(queue: QueueHealth) -> Finding:
    """Report dead and paused incarnations that no other process has taken over yet."""
    held = {each.owner: each.messages for each in queue.claims}
    lost = [heart for heart in queue.hearts if not is_alive(heart)]
    if not lost:
        return fine(
            "workers", f"{counted(len(queue.hearts), 'incarnation')} alive" if queue.hearts else "no worker is alive"
        )
    culprits = [
        {
            "node": heart.node,
            "pid": heart.process,
            "app": app_of(heart.owner),
            "state": "paused" if is_paused(heart) else "dead",
            **({} if heart.silent_seconds is None else {"silent_seconds": heart.silent_seconds}),
            "holds": held.get(heart.owner, 0),
        }
        for heart in lost
    ]
    seen = f"{counted(len(lost), 'incarnation')} dead or paused, {len(queue.hearts) - len(lost)} alive"
    stranded = {app_of(heart.owner) for heart in lost if held.get(heart.owner)} - _apps_with_workers(queue)
    if stranded:
        return critical(
            "workers",
            f"{seen}; no process of {', '.join(sorted(stranded))} is left to take over",
            "Start a worker of that app: it takes over their messages. Resume or end the paused processes.",
            culprits,
        )
    return warning(
        "workers",
        seen,
        "Any worker of their app takes over the dead ones within seconds, and the paused ones after half a minute. Run "
        "the doctor again, and find out why they ended or paused.",
        culprits,
    )


def check_orphans(queue: QueueHealth) -> Finding:
    known = {heart.owner for heart in queue.hearts}
    lost = [each for each in queue.claims if each.owner not in known]
    if not lost:
        return fine("orphaned-claims", "every claimed message has a known owner")
    seen = f"{counted(sum(each.messages for each in lost), 'message')} claimed by unknown owners"
    culprits = [{"owner": each.owner, "messages": each.messages} for each in lost]
    if {app_of(each.owner) for each in lost} <= _apps_with_workers(queue):
        return warning(
            "orphaned-claims",
            seen,
            "A worker of their app releases them within seconds. Run the doctor again.",
            culprits,
        )
    return critical("orphaned-claims", seen, "Start a worker of their app: it releases them.", culprits)


def check_undeclared(stages: list[Undeclared], queue: QueueHealth) -> Finding:
    processes = processes_of(queue.hearts)
    found = [each for each in stages if is_for_a_stage(each.stage) and not holders(each, processes)]
    if not found:
        return fine("undeclared-stages", "every stage at which messages wait is declared by an app")
    ready = {each.stage: each.ready + each.overdue + each.suspect for each in queue.waiting}
    culprits = [
        {"stage": each.stage, "messages": ready.get(each.stage, 0), "last_declared_by": each.app or "no app"}
        for each in found
    ]
    return warning(
        "undeclared-stages",
        f"messages wait at {counted(len(found), 'stage')} that no app declares",
        "Start a worker of the app that the stage belongs to, and let that app import the module that declares it. "
        "After a rename of a stage, keep a stage of the old name until no message waits there.",
        culprits,
    )


def check_ready(queue: QueueHealth, now: int) -> Finding:
    """Judge the age by the start of the flow, because the store does not record when a message reached its stage."""
    ages = {each: (now - each.oldest_at) / SECOND for each in queue.waiting if each.oldest_at is not None}
    ready = sum(each.ready for each in ages)
    if not ages:
        return fine("ready-waiting", "no message is ready")
    oldest = max(ages.values())
    seen = f"{counted(ready, 'message')} ready, the oldest of a flow that began {span(oldest)} ago"
    late = [each for each in ages if ages[each] > READY_SECONDS]
    culprits = [{"stage": each.stage, "ready": each.ready, "oldest_flow_seconds": ages[each]} for each in late]
    if not late:
        return fine("ready-waiting", seen)
    if not _apps_with_workers(queue):
        return critical("ready-waiting", f"{seen}; no worker is alive", START_WORKERS, culprits)
    return warning(
        "ready-waiting",
        seen,
        "Start more workers, or those of the app that declares the stage; 'stagepost audit' shows the latency of each. "
        "A flow that was delayed on purpose counts as old here.",
        culprits,
    )


def check_delayed(queue: QueueHealth, now: int) -> Finding:
    ages = {each: (now - each.due_at) / SECOND for each in queue.waiting if each.due_at is not None}
    late = [each for each in ages if ages[each] > OVERDUE_SECONDS]
    if not late:
        return fine("delayed-overdue", "no delayed message is overdue")
    oldest = max(ages.values())
    seen = f"{counted(sum(each.overdue for each in late), 'delayed message')} overdue, the first by {span(oldest)}"
    culprits = [{"stage": each.stage, "overdue": each.overdue, "overdue_seconds": ages[each]} for each in late]
    if oldest > OVERDUE_SECONDS_WITHOUT_WORKERS and not _apps_with_workers(queue):
        return critical("delayed-overdue", f"{seen}; no worker is alive", START_WORKERS, culprits)
    return warning("delayed-overdue", seen, START_WORKERS, culprits)


def check_outbound(queue: QueueHealth) -> list[Finding]:
    """Report messages for other services that no dispatcher takes, as after ``broker=`` was removed."""
    waiting = [each for each in queue.waiting if is_outbound(each.stage) and each.ready + each.overdue]
    if not waiting or any(heart.node.startswith(f"{BROKER_ROLE}@") and is_alive(heart) for heart in queue.hearts):
        return []
    messages = sum(each.ready + each.overdue for each in waiting)
    return [
        warning(
            "outbound-waiting",
            f"{counted(messages, 'message')} for other services, and no dispatcher is alive",
            "Start a worker of their app with broker= as before. Without a broker they stay here.",
            [{"stage": each.stage, "messages": each.ready + each.overdue} for each in waiting],
        )
    ]


def check_views(views: Sequence[EdgeView], queue: QueueHealth, now: int) -> list[Finding]:
    """Report living processes whose messages do not arrive or leave, and why."""
    living = {heart.node for heart in queue.hearts if is_alive(heart)}
    wrong = [each for each in views if each.node in living and each.state != "connected"]
    if not wrong:
        return []
    return [
        warning(
            "broker-edge",
            f"{counted(len(wrong), 'process', 'processes')} cannot exchange messages with the broker",
            "away: start the broker, or correct its URL. blocked: give it memory or disk; it goes on delivering. full: "
            "start the services that receive the messages, or resume their destinations.",
            [
                {
                    "node": each.node,
                    "broker": each.broker,
                    "state": each.state,
                    "since_seconds": (now - each.since) / SECOND,
                    "reason": each.reason,
                }
                for each in wrong
            ],
        )
    ]


def check_suspects(queue: QueueHealth) -> Finding:
    culprits = [{"stage": each.stage, "suspects": each.suspect} for each in queue.waiting if each.suspect]
    if not culprits:
        return fine("suspects", "no message is suspected of killing its process")
    return warning(
        "suspects",
        f"{counted(sum(each.suspect for each in queue.waiting), 'message')} were running when their process died",
        "Find the cause of the deaths: memory, a native library, an operator. A worker runs these messages one at a "
        "time; 'stagepost trace' shows each.",
        culprits,
    )


def check_paused(paused: list[Paused], now: int) -> Finding:
    if not paused:
        return fine("paused-stages", "no stage is paused")
    culprits = [
        {
            "stage": each.stage,
            "paused_seconds": (now - each.since) / SECOND,
            "failed_probes": each.probes,
            "last_error": each.error,
        }
        for each in paused
    ]
    longest = max((now - each.since) / SECOND for each in paused)
    grade = warning if longest < PAUSED_SECONDS_CRITICAL else critical
    return grade(
        "paused-stages",
        f"{counted(len(paused), 'stage')} paused, because message after message failed",
        "Correct the cause that the last error names. The next probe then ends the pause. To end it at once, run: "
        "stagepost resume STAGE",
        culprits,
    )


def check_backlogs(backlogs: Backlogs, now: int) -> list[Finding]:
    return [
        _check_backlog("outbox", backlogs.held, "started here and not in the queue yet", now),
        _check_backlog("inbox", backlogs.unsent, "handled here and not known to have been sent", now),
    ]


def _check_backlog(code: str, backlog: Backlog, state: str, now: int) -> Finding:
    if backlog.oldest_at is None:
        return fine(code, f"no message is {state}")
    age = (now - backlog.oldest_at) / SECOND
    return graded(
        code,
        age,
        f"{counted(backlog.size, 'message')} {state}, the oldest for {span(age)}",
        SEND,
        warning_from=UNSENT_SECONDS_WARNING,
        critical_from=UNSENT_SECONDS_CRITICAL,
    )


def check_letters(queue: QueueHealth) -> Finding:
    number = sum(each.letters for each in queue.lately)
    if not number:
        return fine("dead-letters", "none within the last hour")
    return warning(
        "dead-letters",
        f"{counted(number, 'dead letter')} within the last hour",
        "Run: stagepost dead list. Correct the cause, and then run: stagepost dead replay --group GROUP",
        [each._asdict() for each in queue.lately],
    )


def check_unseen(unseen: list[Unseen]) -> list[Finding]:
    """Return one warning if parts of the store could not be examined, else nothing."""
    if not unseen:
        return []
    parts = ", ".join(each.what for each in unseen)
    return [
        warning(
            "unseen",
            f"could not be examined: {parts}",
            "Follow the database's error below, and run the doctor as a user that may read Stagepost's tables.",
            [each._asdict() for each in unseen],
        )
    ]


def app_of(owner: str) -> str:
    return owner.partition("/")[0]


def _apps_with_workers(queue: QueueHealth) -> set[str]:
    return {app_of(heart.owner) for heart in queue.hearts if is_alive(heart) and not is_edge(heart.node)}
