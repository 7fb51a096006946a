"""What waits, who works, and whether the two meet: the same for every store."""

from __future__ import annotations

from stagepost.flow.clock import SECOND
from stagepost.flow.declaration import Undeclared
from stagepost.flow.inbox import Backlog
from stagepost.flow.vitals import Backlogs, Heart, Paused, QueueVitals, Unseen, Version
from stagepost.liveness.replies import asks_only, owner_at
from stagepost.liveness.survey import PAUSED_AFTER_SECONDS
from stagepost.liveness.undeclared import Process, holders
from stagepost.observe.checks.finding import HOUR, MINUTE, Finding, counted, critical, fine, graded, span, warning

READY_SECONDS = HOUR
OVERDUE_SECONDS = 5 * MINUTE
OVERDUE_SECONDS_WITHOUT_WORKERS = HOUR
PAUSED_SECONDS_CRITICAL = HOUR
UNSENT_SECONDS_WARNING = 5 * MINUTE
UNSENT_SECONDS_CRITICAL = HOUR

START_WORKERS = "Start workers of the app that declares the stage: stagepost worker MODULE:APP."
SEND = (
    "Start a worker of the app that has this database, with the transport= that it had then: it sends them. Where one "
    "runs, its log says what the queue's database answers."
)


def check_version(version: Version, what: str) -> Finding:
    if version.tables == 0:
        return critical(
            "tables",
            f"{what} has no tables of Stagepost",
            "Check that the URL names the right database; if it does, run: stagepost migrate",
        )
    seen = f"version {version.tables}; this Stagepost has {version.newest}"
    if version.tables < version.newest:
        return critical("tables", f"migrations are missing: {seen}", "Stop the workers, then run: stagepost migrate")
    if version.tables > version.newest:
        return critical("tables", f"the tables are newer than this Stagepost: {seen}", "Upgrade stagepost.")
    return fine("tables", f"version {version.tables}")


def check_queue(queue: QueueVitals, now: int) -> list[Finding]:
    return [
        check_workers(queue),
        check_orphans(queue),
        check_ready(queue, now),
        check_delayed(queue, now),
        check_suspects(queue),
        check_letters(queue),
    ]


def is_alive(heart: Heart) -> bool:
    return heart.is_locked and not is_paused(heart)


def is_paused(heart: Heart) -> bool:
    return heart.is_locked and heart.silent_seconds is not None and heart.silent_seconds > PAUSED_AFTER_SECONDS


def check_workers(queue: QueueVitals) -> Finding:
    """Dead or paused, and not taken over."""
    held = {each.owner: each.messages for each in queue.holdings}
    helped = _apps_at_work(queue)
    lost = [heart for heart in queue.hearts if not is_alive(heart)]
    if not lost:
        return fine("workers", f"{counted(len(queue.hearts), 'incarnation')} alive" if queue.hearts else "nobody works")
    who = [
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
    stranded = {app_of(heart.owner) for heart in lost if held.get(heart.owner)} - helped
    if stranded:
        return critical(
            "workers",
            f"{seen}; nobody of {', '.join(sorted(stranded))} is left to take over",
            "Start a worker of that app: it takes over what they hold. Wake up or end what is paused.",
            who,
        )
    return warning(
        "workers",
        seen,
        "The dead are taken over within seconds and the paused after half a minute by any worker of their app; look "
        "again. Find out what ended or stopped them.",
        who,
    )


def check_orphans(queue: QueueVitals) -> Finding:
    known = {heart.owner for heart in queue.hearts}
    lost = [each for each in queue.holdings if each.owner not in known]
    if not lost:
        return fine("orphaned-claims", "every claimed message has an owner that is known")
    seen = f"{counted(sum(each.messages for each in lost), 'message')} claimed by owners that nobody knows"
    who = [{"owner": each.owner, "messages": each.messages} for each in lost]
    if {app_of(each.owner) for each in lost} <= _apps_at_work(queue):
        return warning(
            "orphaned-claims", seen, "A worker of their app gives them back within seconds; look again.", who
        )
    return critical("orphaned-claims", seen, "Start a worker of their app: it gives them back.", who)


def check_undeclared(stages: list[Undeclared], queue: QueueVitals) -> Finding:
    hearts = [each for each in queue.hearts if each.is_locked and not asks_only(each.node)]
    at_work = [Process(app_of(each.owner), each.node, each.started_at) for each in hearts]
    found = [each for each in stages if owner_at(each.stage) is None and not holders(each, at_work)]
    if not found:
        return fine("undeclared-stages", "every stage at which messages wait is declared by an app")
    ready = {each.stage: each.ready + each.overdue + each.suspect for each in queue.waiting}
    who = [
        {"stage": each.stage, "messages": ready.get(each.stage, 0), "last_declared_by": each.app or "no app"}
        for each in found
    ]
    return warning(
        "undeclared-stages",
        f"messages wait at {counted(len(found), 'stage')} that no app declares",
        "Start a worker of the app that the stage belongs to, and let that app import the module that declares it. "
        "After a rename of the stage, keep one of its old name until nothing waits there.",
        who,
    )


def check_ready(queue: QueueVitals, now: int) -> Finding:
    """By when their flows began: when a message came to where it is, is not on record."""
    ages = {each: (now - each.oldest_at) / SECOND for each in queue.waiting if each.oldest_at is not None}
    ready = sum(each.ready for each in ages)
    if not ages:
        return fine("ready-waiting", "no message is ready and waits")
    oldest = max(ages.values())
    seen = f"{counted(ready, 'message')} ready, the oldest of a flow that began {span(oldest)} ago"
    late = [each for each in ages if ages[each] > READY_SECONDS]
    who = [{"stage": each.stage, "ready": each.ready, "oldest_flow_seconds": ages[each]} for each in late]
    if not late:
        return fine("ready-waiting", seen)
    if not _apps_at_work(queue):
        return critical("ready-waiting", f"{seen}; nobody works", START_WORKERS, who)
    return warning(
        "ready-waiting",
        seen,
        "Start more workers, or those of the app that declares the stage; 'stagepost audit' says where the time goes. "
        "A flow that waited somewhere on purpose counts as old here.",
        who,
    )


def check_delayed(queue: QueueVitals, now: int) -> Finding:
    ages = {each: (now - each.due_at) / SECOND for each in queue.waiting if each.due_at is not None}
    late = [each for each in ages if ages[each] > OVERDUE_SECONDS]
    if not late:
        return fine("delayed-overdue", "no delayed message is overdue")
    oldest = max(ages.values())
    seen = f"{counted(sum(each.overdue for each in late), 'delayed message')} overdue, the first by {span(oldest)}"
    who = [{"stage": each.stage, "overdue": each.overdue, "overdue_seconds": ages[each]} for each in late]
    if oldest > OVERDUE_SECONDS_WITHOUT_WORKERS and not _apps_at_work(queue):
        return critical("delayed-overdue", f"{seen}; nobody works", START_WORKERS, who)
    return warning("delayed-overdue", seen, START_WORKERS, who)


def check_suspects(queue: QueueVitals) -> Finding:
    who = [{"stage": each.stage, "suspects": each.suspect} for each in queue.waiting if each.suspect]
    if not who:
        return fine("suspects", "no message is suspected of killing its process")
    return warning(
        "suspects",
        f"{counted(sum(each.suspect for each in queue.waiting), 'message')} were running when their process died",
        "Look for what killed the processes (memory, a native library, an operator). A worker runs them one at a time; "
        "'stagepost trace' shows each.",
        who,
    )


def check_paused(paused: list[Paused], now: int) -> Finding:
    if not paused:
        return fine("paused-stages", "no stage is paused")
    who = [
        {
            "stage": each.stage,
            "paused_seconds": (now - each.since) / SECOND,
            "failed_probes": each.probes,
            "last_error": each.error,
        }
        for each in paused
    ]
    longest = max((now - each.since) / SECOND for each in paused)
    told = warning if longest < PAUSED_SECONDS_CRITICAL else critical
    return told(
        "paused-stages",
        f"{counted(len(paused), 'stage')} paused, where message after message failed",
        "Mend what the last error names. The next probe then ends the pause; so does, at once: stagepost resume STAGE",
        who,
    )


def check_backlogs(backlogs: Backlogs, now: int) -> list[Finding]:
    return [
        _check_backlog("outbox", backlogs.held, "started here and not in the queue yet", now),
        _check_backlog("inbox", backlogs.unsent, "handled here and not known to have been sent", now),
    ]


def _check_backlog(code: str, backlog: Backlog, what: str, now: int) -> Finding:
    if backlog.oldest_at is None:
        return fine(code, f"no message is {what}")
    age = (now - backlog.oldest_at) / SECOND
    return graded(
        code,
        age,
        f"{counted(backlog.size, 'message')} {what}, the oldest for {span(age)}",
        SEND,
        warning_from=UNSENT_SECONDS_WARNING,
        critical_from=UNSENT_SECONDS_CRITICAL,
    )


def check_letters(queue: QueueVitals) -> Finding:
    number = sum(each.letters for each in queue.lately)
    if not number:
        return fine("dead-letters", "none within the last hour")
    return warning(
        "dead-letters",
        f"{counted(number, 'dead letter')} within the last hour",
        "stagepost dead list; mend the cause, then: stagepost dead replay --group GROUP",
        [each._asdict() for each in queue.lately],
    )


def check_unseen(unseen: list[Unseen]) -> list[Finding]:
    """Nothing where all was seen."""
    if not unseen:
        return []
    what = ", ".join(each.what for each in unseen)
    return [
        warning(
            "unseen",
            f"could not be looked at: {what}",
            "Do what the database's own words below ask for; run it as a user that may read Stagepost's tables.",
            [each._asdict() for each in unseen],
        )
    ]


def app_of(owner: str) -> str:
    return owner.partition("/")[0]


def _apps_at_work(queue: QueueVitals) -> set[str]:
    return {app_of(heart.owner) for heart in queue.hearts if is_alive(heart) and not asks_only(heart.node)}
