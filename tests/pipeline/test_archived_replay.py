"""A letter comes back from the archive once, and only if nothing says that its message committed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from stagepost.cli.main import main
from stagepost.flow.clock import HOUR
from stagepost.flow.codec import decode_envelope
from stagepost.flow.effects import EffectId
from stagepost.flow.errors import ReplayRefused
from stagepost.pipeline.archived_replay import ArchivedReplay
from stagepost.ports.archives import Manifest
from stagepost.ports.dead_letters import DeadLetter
from stagepost.ports.session import Session
from stagepost.recovery.letter_filter import LetterFilter
from stagepost.runtime.assembly import log_of
from stagepost.runtime.purge_service import purge_all
from stagepost.testing.contract.givens import NOW, a_letter, a_waypoint, an_acceptance, an_outgoing, buried, committed
from stagepost.transaction.effects_purge import purge_effects
from stagepost.transaction.queue_commit import QueueCommit
from tests.pipeline.archives import RULES, Shelf, opened
from tests.waiting import PATIENCE_SECONDS

ALL = LetterFilter()
more = pytest.mark.more

# Replays all of an archive, two letters a commit, and kills itself on the way into, or out of, its second commit.
VICTIM = """
import os, signal, sys
from pathlib import Path
from stagepost.recovery import rate_limiter
from tests.pipeline.archives import opened
from tests.pipeline.test_archived_replay import ALL, Ready, replay_of

url, folder, when = sys.argv[1:]
rate_limiter.CHUNK_MAX = 2
with opened(url, Path(folder)) as shelf:
    real, calls = shelf.session.commit, 0

    def fatal():
        global calls
        calls += 1
        if calls == 2 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real()
        if calls == 2 and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    shelf.session.commit = fatal
    list(replay_of(shelf).run(ALL, stop=Ready()))
"""


class Ready:
    """A stop signal that is never given."""

    def wait(self, seconds: float) -> bool:
        return True


def replay_of(shelf: Shelf) -> ArchivedReplay:
    queue_commit = QueueCommit(shelf.session, shelf.clock, "cli")
    log = log_of(shelf.store, shelf.clock, is_made=True)
    return ArchivedReplay(queue_commit, shelf.access, shelf.archive, log, who="ada")


def run(shelf: Shelf, wanted: LetterFilter = ALL, *, again: bool = False) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for each in replay_of(shelf).run(wanted, stop=Ready(), again=again):
        outcomes.update(each)
    return outcomes


def letter(name: str, *, fingerprint: str = "f", dead_at: int = NOW) -> DeadLetter:
    _, data = an_outgoing(f"{name}-m", flow_id=name)
    return a_letter(f"{name}-m", flow_id=name, envelope=data, fingerprint=fingerprint, dead_at=dead_at)


def queued(shelf: Shelf) -> list[str]:
    """The messages in the queue. A letter of the contract has two deaths, so it is a suspect."""
    return sorted(message for (message,) in shelf.rows("queue", "message_id"))


def archived(shelf: Shelf, *letters: DeadLetter) -> None:
    buried(shelf.session, *letters)
    shelf.age()
    shelf.run()
    assert shelf.letters() == []


def test_a_letter_comes_back_once_with_its_id_and_its_bytes(shelf: Shelf) -> None:
    archived(shelf, letter("a"), letter("b"))
    assert run(shelf, LetterFilter(flow_id="a")) == {"replayed": 1}
    assert queued(shelf) == ["a-m"]
    assert [each.waypoint for each in shelf.session.journal.history("a")] == ["replayed"]
    assert run(shelf) == {"replayed": 1, "living": 1}
    assert queued(shelf) == ["a-m", "b-m"]
    shelf.empty()
    # They are neither here nor known to have committed, but they came back before.
    assert run(shelf) == {"before": 2}


def test_letters_are_chosen_by_fingerprint_time_flow_and_type(shelf: Shelf) -> None:
    archived(shelf, letter("a", fingerprint="f1"), letter("b", fingerprint="f2"), letter("c", dead_at=NOW + HOUR))
    other = replay_of(shelf)
    for wanted, names in (
        (LetterFilter(fingerprint="f1"), "a"),
        (LetterFilter(since=NOW + 1), "c"),
        (LetterFilter(until=NOW + 1), "ab"),
        (LetterFilter(until=NOW + 1, fingerprint="f2"), "b"),
        (LetterFilter(type="Anything", flow_id="c"), "c"),
        (LetterFilter(type="Other"), ""),
        (LetterFilter(messages=["b-m", "x-m"]), "b"),
        (ALL, "abc"),
    ):
        assert [each.kept.letter.flow_id for _, each in other.found(wanted)] == list(names)


def test_a_message_that_committed_is_left_alone_or_gets_a_new_linked_id(shelf: Shelf) -> None:
    archived(shelf, letter("a"), letter("b"))
    with committed(shelf.session):
        shelf.session.journal.record([a_waypoint("a-m", "a", name="committed")])
    shelf.age()
    shelf.run()
    assert shelf.stored() == {}, "the line is in the archive alone"
    with committed(shelf.session):
        shelf.session.journal.record([a_waypoint("b-m", "b", name="committed")])
    assert run(shelf) == {"committed": 2}
    assert queued(shelf) == []
    assert run(shelf, LetterFilter(flow_id="a"), again=True) == {"again": 1}
    (new,) = queued(shelf)
    assert new != "a-m"
    assert run(shelf, again=True) == {"again": 1, "before": 1}
    (line,) = [each for each in shelf.session.journal.history("a") if each.message_id == new]
    assert (line.waypoint, line.cause_id) == ("sent", "a-m")
    envelopes = [decode_envelope(data.encode()) for (data,) in shelf.rows("queue", "envelope")]
    assert sorted(each.cause_id or "" for each in envelopes) == ["a-m", "b-m"]


def test_a_message_that_may_have_left_comes_back_with_again_alone(shelf: Shelf) -> None:
    archived(shelf, replace(letter("a"), reason="maybe-sent"))
    assert run(shelf) == {"committed": 1}
    assert queued(shelf) == []
    assert run(shelf, again=True) == {"replayed": 1}
    assert queued(shelf) == ["a-m"]


def test_a_replay_is_refused_if_missing_lines_could_show_a_commit(shelf: Shelf) -> None:
    archived(shelf, letter("a"))
    shelf.write("a")
    shelf.age()
    with committed(shelf.session):
        shelf.session.archives.set_archive(None)
    list(purge_all(shelf.access, rules=RULES))
    assert shelf.stored() == {}
    for _ in range(2):
        with pytest.raises(ReplayRefused, match="it cannot be proved"):
            run(shelf)
        # The gap counts also when newer lines are archived.
        shelf.write("b")
        shelf.age()
        shelf.run()
    assert queued(shelf) == []


def test_two_replays_of_one_archive_at_once_enqueue_each_message_once(shelf: Shelf) -> None:
    names = [f"m{number:03}" for number in range(300)]
    archived(shelf, *map(letter, names))
    outcomes: Counter[str] = Counter()

    def other() -> None:
        with opened(shelf.url, shelf.folder) as found:
            outcomes.update(run(found))

    threads = [Thread(target=other) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert outcomes["replayed"] == len(names)
    assert outcomes.total() == 2 * len(names)
    assert queued(shelf) == [f"{name}-m" for name in names]


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        pytest.param("sqlite", "before", marks=more),
        ("sqlite", "after"),
        pytest.param("postgres", "before", marks=more),
        pytest.param("postgres", "after", marks=more),
    ],
)
def test_a_replay_that_is_killed_is_ended_by_the_next_one(
    new_shelf: Callable[[str], Shelf], kind: str, when: str
) -> None:
    shelf = new_shelf(kind)
    names = [f"m{number}" for number in range(7)]
    archived(shelf, *map(letter, names))
    words = [sys.executable, "-c", VICTIM, shelf.url, str(shelf.folder), when]
    assert subprocess.run(words, timeout=PATIENCE_SECONDS).returncode == -signal.SIGKILL
    assert len(queued(shelf)) == (2 if when == "before" else 4)
    run(shelf)
    assert queued(shelf) == [f"{name}-m" for name in names]
    assert len([each for name in names for each in shelf.session.journal.history(name)]) == len(names)


def add_effect(apart: Session, wanted: EffectId) -> None:
    """A call whose result is known, of an attempt whose undo ended, so it is kept."""
    with committed(apart):
        row = apart.effects.add(wanted, "a", 0, "digest", b"request")
        apart.effects.intend(row, 1, "owner", "node", NOW, is_repeat=False)
        apart.effects.keep(row, b"result")
        apart.effects.end(row, "doubted")


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=more)])
def test_a_replay_that_is_killed_behind_the_effects_of_a_letter_is_ended_by_the_next_one(
    new_shelf: Callable[[str], Shelf], kind: str
) -> None:
    shelf = new_shelf(kind)
    wanted = EffectId("a-m", "pay", 0, "", "card", 0)
    with closing(shelf.store.apart.session()) as apart:
        add_effect(apart, wanted)
        archived(shelf, letter("a"))
        list(purge_effects(apart, shelf.session))
        assert apart.effects.find(wanted) is None
        # Its first commit holds the log of effects, and its second one puts the message back.
        words = [sys.executable, "-c", VICTIM, shelf.url, str(shelf.folder), "before"]
        assert subprocess.run(words, timeout=PATIENCE_SECONDS).returncode == -signal.SIGKILL
        assert (queued(shelf), apart.effects.find(wanted) is None) == ([], False)
        assert run(shelf) == {"replayed": 1}
        (found,) = apart.effects.of_message("a-m", "pay")
        assert (found.id, found.result, len(found.intents)) == (wanted, b"result", 1)
    assert queued(shelf) == ["a-m"]


def test_the_effects_of_a_letter_come_back_before_its_message(shelf: Shelf) -> None:
    wanted = EffectId("a-m", "pay", 0, "", "card", 0)
    with closing(shelf.store.apart.session()) as apart:
        add_effect(apart, wanted)
        before = apart.effects.find(wanted)
        with committed(shelf.session):
            shelf.session.journal.record([a_waypoint("a-m", "a", name="accepted")])
        archived(shelf, letter("a"))
        # A purge looks at the old rows, and stands still.
        with opened(shelf.url, shelf.folder) as other, closing(other.store.apart.session()) as purging:
            listed = purging.effects.flows(0, 10)
            shelf.run()
            assert run(shelf) == {"replayed": 1}
            with committed(purging):
                purging.effects.remove_flows(["a"], listed[-1][0])
        after = apart.effects.find(wanted)
        assert before is not None
        assert after is not None
        assert (after.result, after.digest, after.ending, len(after.unknown)) == (b"result", "digest", "doubted", 1)
        # The purge holds back even if it does not see the message yet.
        shelf.empty()
        list(purge_effects(apart, shelf.session))
        assert apart.effects.find(wanted) is not None
        # An owner of the dead message comes too late.
        with committed(apart):
            assert not apart.effects.raise_token("a-m", "pay", letter("a").deliveries)
        shelf.age()
        shelf.run()
        list(purge_effects(apart, shelf.session))
        assert apart.effects.find(wanted) is None


def test_the_command_replays_the_letters_of_the_store_and_of_the_archive(new_shelf: Callable[[str], Shelf]) -> None:
    shelf = new_shelf("sqlite")
    archived(shelf, letter("old"), letter("older"))
    buried(shelf.session, letter("living"), a_letter("odd", flow_id="odd", envelope=b"odd"))

    def command(*words: str) -> tuple[int, dict[str, object]]:
        line = ["replay", *words, "--database", shelf.url, "--archive", str(shelf.folder), "--json"]
        done = CliRunner().invoke(main, line)
        return done.exit_code, json.loads(done.stdout) if done.stdout else {}

    assert command() == (2, {})
    assert command("--type", "Anything", "--dry-run") == (0, {"store": 1, "archive": 2, "no_body": []})
    code, found = command("--message", "old-m", "--message", "nobody")
    assert (code, found["replayed"], found["no_body"]) == (1, 1, ["nobody"])
    code, found = command("--type", "Anything")
    assert (code, found["replayed"], found["living"]) == (0, 2, 1)
    assert queued(shelf) == ["living-m", "old-m", "older-m"]
    hint = CliRunner().invoke(main, ["replay", "--all", "--database", shelf.url])
    assert (hint.exit_code, "name its folder with --archive" in hint.stderr) == (0, True)
    assert "replayed 1. Had committed: 0 were left alone, 0 got a new id" in hint.stdout
    assert queued(shelf) == ["living-m", "odd", "old-m", "older-m"]


def test_a_message_that_waits_only_in_the_second_file_lives(new_shelf: Callable[[str], Shelf]) -> None:
    shelf = new_shelf("sqlite")
    archived(shelf, letter("a"), letter("b"))
    with closing(shelf.store.apart.session()) as apart, committed(apart):
        apart.outbox.hold([an_acceptance("a-m")], NOW, "node")
    assert run(shelf) == {"living": 1, "replayed": 1}
    assert queued(shelf) == ["b-m"]


def test_chunks_of_letters_read_each_file_of_lines_once(
    new_shelf: Callable[[str], Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.recovery.rate_limiter.CHUNK_MAX", 10)
    shelf = new_shelf("sqlite")
    names = [f"m{number:02}" for number in range(30)]
    archived(shelf, *map(letter, names))
    for name in names[:3]:
        with committed(shelf.session):
            shelf.session.journal.record([a_waypoint(f"{name}-m", name, name="committed")])
        shelf.age()
        shelf.run()
    opened_files = Counter[str]()
    real = pq.ParquetFile

    def counted(path: Path, **options: bool) -> pq.ParquetFile:
        opened_files[path.parent.name] += 1
        return real(path, **options)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    assert run(shelf) == {"committed": 3, "replayed": 27}
    assert len(opened_files) == 4
    assert set(opened_files.values()) == {1}


def test_a_replay_reads_each_manifest_once_however_many_chunks_it_has(
    new_shelf: Callable[[str], Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.recovery.rate_limiter.CHUNK_MAX", 2)
    shelf = new_shelf("sqlite")
    with committed(shelf.session):
        for number in range(20):
            shelf.session.archives.add(Manifest("ended", "dead_letters", f"old-{number}", 1, 2, 1, "", "", NOW))
    archived(shelf, *map(letter, "abcdef"))
    read: list[int] = []
    real = shelf.session.archives.manifests

    def counted(after: int = 0) -> list[Manifest]:
        found = real(after)
        read.append(len(found))
        return found

    monkeypatch.setattr(shelf.session.archives, "manifests", counted)
    assert [outcomes.total() for outcomes in replay_of(shelf).run(ALL, stop=Ready())] == [2, 2, 2]
    # The letters come from the first ones. Each chunk looks twice: before its transaction, and in it.
    assert read == [21, 21, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("is_purged", [False, True], ids=["archived", "purged"])
def test_a_commit_whose_line_leaves_the_store_after_the_look_is_seen(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, *, is_purged: bool
) -> None:
    archived(shelf, letter("a"))
    with committed(shelf.session):
        shelf.session.journal.record([a_waypoint("a-m", "a", name="committed")])
    shelf.age()
    replay = replay_of(shelf)
    restore = replay._restore

    def leave(chunk: Any) -> int | None:
        """Between the look into the archive and the transaction."""
        with opened(shelf.url, shelf.folder) as other:
            if is_purged:
                with committed(other.session):
                    other.session.archives.set_archive(None)
                list(purge_all(other.access, rules=RULES))
            else:
                other.run()
            assert other.stored() == {}
        return restore(chunk)

    monkeypatch.setattr(replay, "_restore", leave)
    outcomes = replay.run(ALL, stop=Ready())
    if is_purged:
        with pytest.raises(ReplayRefused, match="it cannot be proved"):
            list(outcomes)
    else:
        assert list(outcomes) == [{"committed": 1}]
    assert queued(shelf) == []


def test_a_command_that_is_interrupted_says_how_to_continue(
    new_shelf: Callable[[str], Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = new_shelf("sqlite")
    archived(shelf, *map(letter, ("old", "older")))
    buried(shelf.session, *map(letter, ("new", "newer")))

    def command(*words: str) -> Result:
        return CliRunner().invoke(main, [*words, "--database", shelf.url])

    folder = ("--archive", str(shelf.folder))
    real, chunks = QueueCommit.revive, []

    def interrupted(self: QueueCommit, revived: DeadLetter) -> None:
        chunks.append(revived)
        if len(chunks) == 1:
            signal.raise_signal(signal.SIGINT)
        real(self, revived)

    monkeypatch.setattr(QueueCommit, "revive", interrupted)
    monkeypatch.setattr("stagepost.recovery.rate_limiter.CHUNK_MAX", 1)
    first = command("replay", "--all", *folder)
    assert first.exit_code == 130
    assert "Continue with: stagepost dead replay --resume 1, then this command with --archived" in first.stderr
    assert (len(queued(shelf)), len(shelf.letters())) == (1, 1)
    assert command("dead", "replay", "--resume", "1").exit_code == 0
    assert queued(shelf) == ["new-m", "newer-m"]
    # One of them dies again. The rest of the interrupted replay leaves it alone.
    shelf.empty()
    buried(shelf.session, letter("new"))
    assert command("replay", "--all", "--archived", *folder).exit_code == 0
    assert (queued(shelf), shelf.letters()) == (["old-m", "older-m"], ["new-m"])
    assert command("replay", "--all", "--archived").exit_code == 2
