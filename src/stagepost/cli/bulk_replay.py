"""``stagepost replay``: give dead letters new attempts, those of the store and those of its archive."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.progress import TextColumn

from stagepost.cli.archives import archive_option, archived_replay, check_archive
from stagepost.cli.exits import BAD_NEWS, INTERRUPTED, readable_errors
from stagepost.cli.interruption import PipeSignal, interruptible
from stagepost.cli.options import FiniteNumber, database_option, existing_store, json_option, user_name
from stagepost.cli.replay import MOMENT
from stagepost.cli.show import echo, progress
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import StagepostError
from stagepost.ports.dead_letters import DeadLetters, KeptLetter, Selection
from stagepost.ports.replays import Replay, Selections
from stagepost.recovery.letter_filter import LetterFilter, types_of
from stagepost.runtime.assembly import queue_commit_of_command
from stagepost.runtime.settings import archive_of
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.replaying import freeze, run_replay

if TYPE_CHECKING:
    from stagepost.pipeline.archived_replay import ArchivedReplay

OUTCOMES = ("replayed", "again", "committed", "living", "before")
DRY = "{store} letters of the store and {archive} of the archive would be replayed"
DONE = (
    "replayed {replayed}. Had committed: {committed} were left alone, {again} got a new id. {living} are in the "
    "queue or the dead letters, or gone. {before} were replayed before"
)


@click.command()
@click.option("--fingerprint", metavar="FINGERPRINT", help="Letters of that group.")
@click.option("--flow", metavar="FLOW_ID", help="Letters of that flow.")
@click.option("--since", metavar="MOMENT", type=MOMENT, help="Letters that died at MOMENT or later.")
@click.option("--until", metavar="MOMENT", type=MOMENT, help="Letters that died before MOMENT.")
@click.option("--type", "type_name", metavar="TYPE", help="Letters of messages of that type, such as Order.")
@click.option("--message", "messages", metavar="MESSAGE_ID", multiple=True, help="The letter of that message.")
@click.option("--all", "every", is_flag=True, help="Every letter.")
@archive_option
@click.option("--archived", is_flag=True, help="Only letters of the archive.")
@click.option("--rate", metavar="N", type=FiniteNumber(min=0, min_open=True), help="At most N messages a second.")
@click.option("--again", is_flag=True, help="Replay also messages that committed, or may have been sent before.")
@click.option("--dry-run", is_flag=True, help="Replay nothing, and count the letters.")
@database_option
@json_option
def replay(
    fingerprint: str | None,
    flow: str | None,
    since: int | None,
    until: int | None,
    type_name: str | None,
    messages: tuple[str, ...],
    every: bool,
    archive: str | None,
    archived: bool,
    rate: float | None,
    again: bool,
    dry_run: bool,
    database: str | None,
    as_json: bool,
) -> None:
    """Give dead letters new attempts: those of the store, and those of its archive if it is named.

    Several options narrow the choice. A message of the archive that has committed since is left alone. With --again it
    gets a new id, and names the old message as its cause.
    """
    wanted = LetterFilter(
        fingerprint=fingerprint,
        flow_id=flow,
        since=since,
        until=until,
        type=type_name,
        messages=tuple(dict.fromkeys(messages)) or None,
    )
    if every == (wanted != LetterFilter()):
        raise click.UsageError(
            "name the letters with --fingerprint, --flow, --since, --until, --type and --message, or with --all"
        )
    with readable_errors(), existing_store(database) as (store, access):
        queue_commit = queue_commit_of_command(store, access, SystemClock(), f"cli:{user_name()}")
        has_archived = any(each.kind == "dead_letters" for each in access.session.archives.manifests())
        folder = archive_of(archive)
        if archived and folder is None:
            raise click.UsageError("--archived needs the folder of the archive: name it with --archive")
        check_archive(archive, access.session)
        job = None
        if folder is not None and has_archived:
            job = archived_replay(folder, store, access, queue_commit, user_name())
        letters = None if archived else access.session.dead_letters
        missing = _without_letter(wanted, letters, job)
        if dry_run:
            living = sum(1 for _ in chosen(wanted, letters))
            in_archive = 0 if job is None else sum(1 for _ in job.found(wanted))
            _print(Counter(store=living, archive=in_archive), missing, DRY, as_json=as_json)
            return
        frozen = None if letters is None else _freeze(queue_commit, wanted, letters, rate, again=again)
        done: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        rest = _rest(frozen, has_archive=job is not None)
        try:
            with interruptible() as stop, progress(TextColumn("{task.completed} letters")) as shown:
                task = shown.add_task("replay", total=None)
                parts: list[Iterable[Mapping[Any, int]]] = []
                parts += [] if frozen is None else [_replay_living(queue_commit, frozen, stop, rate)]
                parts += [] if job is None else [job.run(wanted, stop=stop, again=again, rate=rate)]
                for each in itertools.chain.from_iterable(parts):
                    done.update(each)
                    shown.update(task, completed=done.total())
                is_interrupted = not stop.wait(0)
        except StagepostError:
            _print(done, missing, DONE, as_json=as_json)
            echo(f"replay interrupted. {rest}", err=True)
            raise
    _print(done, missing, DONE, as_json=as_json)
    if has_archived and folder is None:
        echo("other letters are in the archive of this store: name its folder with --archive", err=True)
    if is_interrupted:
        echo(f"replay interrupted. {rest}", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if missing or not done.total():
        raise click.exceptions.Exit(BAD_NEWS)


def chosen(wanted: LetterFilter, letters: DeadLetters | None) -> Iterator[KeptLetter]:
    """Yield the letters of a store that a filter takes."""
    if letters is None:
        return
    looks = [each for each in wanted.selections() if isinstance(each, Selection)]
    # Each look finds all letters of the filter, except for those by message, which find one each.
    ways = [each for each in looks if each.by == "message"] or looks[:1] or [Selection("all")]
    for way in ways:
        for each in letters.select(way):
            if wanted.takes(each.letter, types_of(each.letter.envelope)):
                yield each


def _freeze(
    queue_commit: QueueCommit, wanted: LetterFilter, letters: DeadLetters, rate: float | None, *, again: bool
) -> Replay | None:
    selections: Selections = wanted.selections() or [Selection("all")]
    if not wanted.is_one_look:
        selections = [Selection("id", each.id) for each in chosen(wanted, letters)]
    session, clock = queue_commit.session, queue_commit.clock
    return freeze(session, selections, clock=clock, who=user_name(), rate=rate, may_send_again=again)


def _replay_living(
    queue_commit: QueueCommit, frozen: Replay, stop: PipeSignal, rate: float | None
) -> Iterator[Mapping[str, int]]:
    for chunk in run_replay(queue_commit, frozen, stop=stop, who=user_name(), rate=rate):
        yield Counter(replayed=len(chunk.letters), living=chunk.gone)


def _rest(frozen: Replay | None, *, has_archive: bool) -> str:
    """Say how to continue. The same command would also replay letters that died again meanwhile."""
    ways = [] if frozen is None else [f"stagepost dead replay --resume {frozen.id}"]
    ways += ["this command with --archived"] if has_archive else []
    return f"Continue with: {', then '.join(ways)}"


def _without_letter(wanted: LetterFilter, letters: DeadLetters | None, job: ArchivedReplay | None) -> list[str]:
    """Return the named messages that have no letter, so that there is no body to replay."""
    if wanted.messages is None:
        return []
    found = {each.letter.message_id for each in chosen(wanted, letters)}
    if job is not None:
        found |= {each.kept.letter.message_id for _, each in job.found(wanted)}
    return [each for each in wanted.messages if each not in found]


def _print(counts: Counter[str], missing: Sequence[str], text: str, *, as_json: bool) -> None:
    if as_json:
        echo(json.dumps({**counts, "no_body": list(missing)}))
        return
    for each in missing:
        echo(f"no body: there is no dead letter of the message {each!r}", err=True)
    echo(text.format_map(counts))
