"""``stagepost dead replay | replays``"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from stagepost.flow.clock import to_datetime
from stagepost.flow.errors import StoreUnavailable
from stagepost.ports.dead_letters import Selection
from stagepost.store.sql.journal import SqlJournal
from stagepost.transaction import replaying
from tests.cli.graves import dead, ids
from tests.cli.shop import Shop, command, parsed
from tests.waiting import wait_until


def told(replayed: int, *, asked: int | None = None, gone: int = 0, missing: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the first replay of a store says when it has ended."""
    return {
        "replay": 1,
        "asked": replayed + gone if asked is None else asked,
        "replayed": replayed,
        "gone": gone,
        "left": 0,
        "not_found": list(missing),
    }


# Which


@pytest.mark.parametrize("option", [None, "--id"])
def test_letters_are_replayed_by_number(graves: Shop, option: str | None) -> None:
    found = ids(graves)
    numbers = [str(found["order:1"]), str(found["order:3"])]
    named = numbers if option is None else [word for each in numbers for word in (option, each)]
    assert parsed(dead(graves, "replay", *named, "--json")) == told(2)
    assert ids(graves).keys() == {"order:2", "order:4", "order:5"}
    ready = graves.harness.access.claimer.claim(["shop.pay"], 10, "shop/1", "node")
    assert [(each.flow_id, each.failures, each.deaths) for each in ready] == [("order:1", 0, 0), ("order:3", 0, 0)]


@pytest.mark.parametrize("option", [[], ["--message"]])
def test_letters_are_replayed_by_message_under_the_same_id(graves: Shop, option: list[str]) -> None:
    (kept,) = (each for each in graves.letters() if each.letter.flow_id == "order:2")
    assert parsed(dead(graves, "replay", *option, kept.letter.message_id, "--json"))["replayed"] == 1
    (again,) = graves.harness.access.claimer.claim(["shop.pay"], 10, "shop/1", "node")
    assert again.message_id == kept.letter.message_id
    assert again.envelope == kept.letter.envelope
    assert again.deliveries > 1


def test_letters_are_replayed_by_group_by_flow_and_all(graves: Shop) -> None:
    (group, *_) = parsed(dead(graves, "list", "--json"))
    assert parsed(dead(graves, "replay", "--group", group["fingerprint"], "--json"))["replayed"] == 2
    assert ids(graves).keys() == {"order:3", "order:4", "order:5"}
    assert parsed(dead(graves, "replay", "--flow", "order:4", "--json"))["replayed"] == 1
    assert ids(graves).keys() == {"order:3", "order:5"}
    result = dead(graves, "replay", "--all")
    assert result.stdout == "replay 3: 2 dead letters\nreplayed 2 of 2 dead letters\n"
    assert ids(graves) == {}


def test_letters_are_replayed_by_when_they_died(graves: Shop) -> None:
    moments = sorted(kept.letter.dead_at for kept in graves.letters())
    third = to_datetime(moments[2])
    zone = third.astimezone().isoformat()
    assert parsed(dead(graves, "replay", "--since", zone, "--dry-run", "--json"))["letters"] == 3
    naive = third.replace(tzinfo=None).isoformat()
    assert (
        parsed(dead(graves, "replay", "--since", naive, "--until", naive, "--dry-run", "--json", code=1))["letters"]
        == 0
    )
    after = (third + timedelta(microseconds=1)).isoformat()
    assert parsed(dead(graves, "replay", "--since", naive, "--until", after, "--json"))["replayed"] == 1
    assert parsed(dead(graves, "replay", "--until", naive, "--json"))["replayed"] == 2
    assert sorted(kept.letter.dead_at for kept in graves.letters()) == moments[3:]


@pytest.mark.parametrize("moment", ["yesterday", "2026-13-01", ""])
def test_a_moment_that_is_none_is_refused(graves: Shop, moment: str) -> None:
    result = dead(graves, "replay", "--since", moment)
    assert result.exit_code == 2
    assert "such as 2026-03-01" in result.stderr


def test_a_letter_is_replayed_by_its_flow_without_an_option_too(graves: Shop) -> None:
    assert parsed(dead(graves, "replay", "order:2", "--json"))["replayed"] == 1
    assert "order:2" not in ids(graves)


def test_what_is_named_twice_is_replayed_once(graves: Shop) -> None:
    number = str(ids(graves)["order:1"])
    assert parsed(dead(graves, "replay", number, "order:1", number, "--json")) == told(1)


def test_one_that_does_not_exist_is_bad_news_and_the_others_are_replayed(graves: Shop) -> None:
    result = dead(graves, "replay", str(ids(graves)["order:1"]), "999", "nobody", str(2**64))
    assert result.exit_code == 1
    assert "replayed 1 of 1" in result.stdout
    for missing in ("'999'", "'nobody'", repr(str(2**64))):
        assert missing in result.stderr
    again = dead(graves, "replay", "--id", "998", "--id", str(ids(graves)["order:2"]), "--json")
    assert again.exit_code == 1
    assert json.loads(again.stdout) == told(1, missing=("998",)) | {"replay": 2}


@pytest.mark.parametrize(
    "way", [["--group", "000000000000"], ["--flow", "order:99"], ["--all"], ["--since", "2020-01-01"]]
)
def test_a_selection_without_letters_is_bad_news_and_no_replay(way: list[str], shop: Shop) -> None:
    assert parsed(dead(shop, "replay", *way, "--json", code=1)) == told(0) | {"replay": None}
    assert dead(shop, "replay", *way, code=1).stdout == "no dead letters to replay\n"
    assert dead(shop, "replays").stdout == "no replays\n"


@pytest.mark.parametrize(
    "ways",
    [
        [],
        ["1", "--all"],
        ["--flow", "f", "--group", "g"],
        ["--all", "--flow", "f"],
        ["--resume", "1", "--all"],
        ["--since", "2020-01-01", "--id", "1"],
        ["--message", "m", "--id", "1"],
    ],
)
def test_replaying_without_saying_which_or_in_two_ways_is_refused_and_replays_nothing(
    ways: list[str], graves: Shop
) -> None:
    result = dead(graves, "replay", *ways)
    assert result.exit_code == 2
    assert "name the letters in exactly one way" in result.stderr
    assert len(ids(graves)) == 5


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "fast"])
def test_a_rate_that_is_none_is_refused(graves: Shop, rate: str) -> None:
    assert dead(graves, "replay", "--all", "--rate", rate).exit_code == 2
    assert len(ids(graves)) == 5


def test_a_dry_run_tells_how_many_by_group_and_replays_nothing(graves: Shop) -> None:
    shown = parsed(dead(graves, "replay", "--all", "--dry-run", "--json"))
    assert shown["letters"] == 5
    assert shown["groups"] == parsed(dead(graves, "list", "--json"))
    text = dead(graves, "replay", "--flow", "order:1", "--dry-run").stdout
    assert shown["groups"][0]["fingerprint"] in text
    assert "1 dead letters would be replayed" in text
    assert len(ids(graves)) == 5
    assert parsed(dead(graves, "replays", "--json")) == []
    assert dead(graves, "replay", "--resume", "1", "--dry-run").exit_code == 2


# What becomes of them


def test_one_that_killed_its_process_runs_alone_again(graves: Shop) -> None:
    dead(graves, "replay", "--flow", "order:5")
    claimer = graves.harness.access.claimer
    assert claimer.claim(["shop.pay"], 10, "shop/1", "node") == []
    suspect = claimer.claim_suspect(["shop.pay"], "shop/1", "node")
    assert suspect is not None
    # As one that was there when a process died: its deaths alone are forgotten.
    assert (suspect.flow_id, suspect.failures, suspect.deaths) == ("order:5", 0, 1)


def test_a_replay_is_in_the_journal_with_who_asked_for_it(graves: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "olga")
    dead(graves, "replay", "--flow", "order:1")
    last = graves.harness.history("order:1")[-1]
    assert (last.waypoint, last.detail) == ("replayed", "by olga, replay 1")
    standing = parsed(command("trace", "order:1", "--json", "--database", graves.url))["standing"]
    assert standing == "under way"


def test_a_replayed_letter_that_dies_again_is_a_new_letter_of_the_same_message(graves: Shop) -> None:
    before = ids(graves)
    dead(graves, "replay", "--flow", "order:1")
    graves.run()
    after = ids(graves)
    assert after["order:1"] > max(before.values())


def test_replaying_works_for_a_user_without_a_name(graves: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number which no one gave a name."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert dead(graves, "replay", "--flow", "order:1").exit_code == 0


# Between asking and working off


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What these do happens after the set was frozen, and before its first letter is replayed."""
    happenings: list[Any] = []
    freeze = replaying.freeze

    def freeze_and_be_late(*arguments: Any, **options: Any) -> Any:
        found = freeze(*arguments, **options)
        for each in happenings:
            each()
        return found

    monkeypatch.setattr("stagepost.cli.replay.freeze", freeze_and_be_late)
    return happenings


def test_the_set_is_frozen_when_it_is_asked_for(graves: Shop, between: list[Any]) -> None:
    """Another one dies while the first are replayed; it is not replayed."""

    def die() -> None:
        graves.order("order:6", "fail")
        graves.run()

    between.append(die)
    assert parsed(dead(graves, "replay", "--all", "--json")) == told(5)
    assert ids(graves).keys() == {"order:6"}


def test_one_that_somebody_else_replayed_meanwhile_is_gone_and_told(graves: Shop, between: list[Any]) -> None:
    def take() -> None:
        session = graves.harness.access.session
        session.begin()
        (first, *_) = session.dead_letters.select(Selection("all"))
        assert session.dead_letters.remove(first.id)
        session.commit()

    between.append(take)
    result = dead(graves, "replay", "--all")
    assert result.exit_code == 0
    assert "replayed 4 of 5 dead letters; 1 were gone, replayed or edited by another command" in result.stdout
    assert ids(graves) == {}
    (listed,) = parsed(dead(graves, "replays", "--json"))
    assert (listed["letters"], listed["replayed"], listed["gone"], listed["left"]) == (5, 4, 1, 0)


# Broken off, and resumed


@pytest.fixture
def many(shop: Shop) -> Shop:
    # Refused, for so many that failed would be a stage that fails, and no dead letters.
    for number in range(40):
        shop.order(f"order:{number}", "refuse")
    shop.run()
    return shop


def replayed_lines(shop: Shop) -> dict[str, int]:
    flows = [f"order:{number}" for number in range(40)]
    return {flow: [each.waypoint for each in shop.harness.history(flow)].count("replayed") for flow in flows}


def started_replay(shop: Shop, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "stagepost", "dead", "replay", *arguments, "--database", shop.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(
        lambda: any(each.replayed >= 3 for each in shop.harness.access.session.replays.listed()), "three are replayed"
    )
    return process


def test_ctrl_c_stops_between_two_letters_and_says_how_to_resume(many: Shop) -> None:
    process = started_replay(many, "--all", "--rate", "5")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    (listed,) = parsed(dead(many, "replays", "--json"))
    assert 3 <= listed["replayed"] < 40
    assert out == f"replay 1: 40 dead letters\nreplayed {listed['replayed']} of 40 dead letters\n"
    assert err == f"stopped, {listed['left']} are left. Continue with: stagepost dead replay --resume 1\n"
    assert sum(replayed_lines(many).values()) == listed["replayed"]
    assert parsed(dead(many, "replay", "--resume", "1", "--rate", "1000", "--json")) == told(40)
    assert set(replayed_lines(many).values()) == {1}


def test_ctrl_c_is_told_to_programs_by_exit_code_and_by_what_is_left(many: Shop) -> None:
    process = started_replay(many, "--all", "--rate", "5", "--json")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (130, "")
    found = json.loads(out)
    assert (found["replay"], found["asked"], found["left"]) == (1, 40, 40 - found["replayed"])


def test_a_replay_that_is_killed_is_resumed_and_every_letter_replayed_once(many: Shop) -> None:
    process = started_replay(many, "--all", "--rate", "20")
    process.kill()
    process.communicate()
    (listed,) = parsed(dead(many, "replays", "--json"))
    assert (listed["rate"], listed["letters"]) == (20.0, 40)
    assert 3 <= listed["replayed"] < 40
    assert sum(replayed_lines(many).values()) == listed["replayed"]
    assert parsed(dead(many, "replay", "--resume", "1", "--json")) == told(40)
    assert set(replayed_lines(many).values()) == {1}
    assert ids(many) == {}


def test_two_that_resume_the_same_replay_at_once_double_and_skip_nothing(many: Shop) -> None:
    first = started_replay(many, "--all", "--rate", "20")
    second = started_replay(many, "--resume", "1", "--rate", "20")
    answers = [process.communicate() for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], answers
    assert [out.splitlines()[-1] for out, _ in answers] == ["replayed 40 of 40 dead letters"] * 2
    assert set(replayed_lines(many).values()) == {1}


def test_a_replay_that_has_ended_is_resumed_without_more_ado(graves: Shop) -> None:
    dead(graves, "replay", "--all")
    assert parsed(dead(graves, "replay", "--resume", "1", "--json")) == told(5)


def test_a_replay_that_nobody_asked_for_is_bad_news(graves: Shop) -> None:
    result = dead(graves, "replay", "--resume", "7")
    assert result.exit_code == 1
    assert "there is no replay 7" in result.stderr
    assert len(ids(graves)) == 5


def test_a_database_that_says_no_is_told_with_how_to_resume(graves: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(SqlJournal, "record", fail)
    result = dead(graves, "replay", "--all")
    assert result.exit_code == 3
    assert "replay interrupted. Continue with: stagepost dead replay --resume 1" in result.stderr
    assert "the disk is full" in result.stderr
    assert len(ids(graves)) == 5


# replays


def test_replays_are_listed_with_how_far_each_has_come(graves: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "olga")
    dead(graves, "replay", "--flow", "order:1", "--rate", "50")
    dead(graves, "replay", "order:2", str(ids(graves)["order:3"]))
    listed = parsed(dead(graves, "replays", "--json"))
    assert [(each["id"], each["who"], each["rate"], each["replayed"], each["left"]) for each in listed] == [
        (1, "olga", 50.0, 1, 0),
        (2, "olga", None, 2, 0),
    ]
    text = dead(graves, "replays").stdout
    assert "flow order:1" in text
    assert "flow order:2, id 3" in text
