"""``stagepost dead list | show | replay``"""

from __future__ import annotations

import json
import os

import pytest
from click.testing import Result

from stagepost.recovery.letters import Selection
from stagepost.transaction import replaying
from tests.cli.shop import Shop, command, parsed


def dead(shop: Shop, *arguments: str) -> Result:
    return command("dead", *arguments, "--database", shop.url)


@pytest.fixture
def graves(shop: Shop) -> Shop:
    """Five dead letters: two of one group, two of others, one that killed its process."""
    shop.order("order:1", "fail")
    shop.order("order:2", "fail")
    shop.order("order:3", "refuse")
    shop.order("order:4", "fail-late")
    shop.run()
    shop.died("order:5")
    return shop


def ids(shop: Shop) -> dict[str, int]:
    return {kept.letter.flow_id: kept.id for kept in shop.letters()}


# list


def test_without_dead_letters_there_are_no_groups(shop: Shop) -> None:
    assert dead(shop, "list").stdout == "no dead letters\n"
    assert dead(shop, "list", "--each").stdout == "no dead letters\n"
    assert parsed(dead(shop, "list", "--json")) == []


def test_letters_are_listed_in_groups_of_one_failure_at_one_place(graves: Shop) -> None:
    groups = parsed(dead(graves, "list", "--json"))
    assert (groups[0]["stage"], groups[0]["reason"], groups[0]["count"]) == ("shop.pay", "exhausted", 2)
    assert sorted((each["stage"], each["reason"], each["count"]) for each in groups[1:]) == [
        ("shop.pay", "refused", 1),
        ("shop.pay", "worker-died", 1),
        ("shop.ship", "exhausted", 1),
    ]
    text = dead(graves, "list").stdout
    assert "ValueError: order 1 cannot be paid" in text
    assert "the account is [closed]" in text
    assert groups[0]["fingerprint"] in text


def test_a_group_or_all_are_listed_letter_by_letter(graves: Shop) -> None:
    (group, *_) = parsed(dead(graves, "list", "--json"))
    listed = parsed(dead(graves, "list", "--group", group["fingerprint"], "--json"))
    assert [each["flow_id"] for each in listed] == ["order:1", "order:2"]
    every = parsed(dead(graves, "list", "--each", "--json"))
    assert {each["flow_id"] for each in every} == {f"order:{number}" for number in range(1, 6)}
    assert "envelope" not in every[0]
    text = dead(graves, "list", "--each").stdout
    assert len(text.strip().splitlines()) == 6


def test_a_group_that_does_not_exist_has_no_letters(graves: Shop) -> None:
    assert parsed(dead(graves, "list", "--group", "000000000000", "--json")) == []


# show


def test_a_letter_is_shown_whole_by_its_number_and_by_its_messages_id(graves: Shop) -> None:
    number = ids(graves)["order:4"]
    text = dead(graves, "show", str(number)).stdout
    for wanted in ("order:4", "shop.ship", "exhausted", "1 failed, 0 died", "LookupError: no address", "because of"):
        assert wanted in text
    assert "KeyError" in text
    assert "shop.py" in text
    assert '"flow_id":"order:4"' in text
    shown = parsed(dead(graves, "show", str(number), "--json"))
    assert parsed(dead(graves, "show", shown["message_id"], "--json")) == shown
    assert [cause["type"] for cause in shown["causes"]] == ["LookupError", "KeyError"]
    assert json.loads(shown["envelope"])["flow_id"] == "order:4"
    assert shown["failures"] == 1
    assert "raise LookupError" in shown["stack"]
    # The framework's own frames are left out.
    assert "stagepost/transaction" not in shown["stack"]


@pytest.mark.parametrize("wanted", ["999", "0", "no-such-message"])
def test_a_letter_that_does_not_exist_is_bad_news(wanted: str, graves: Shop) -> None:
    result = dead(graves, "show", wanted)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert repr(wanted) in result.stderr


def test_a_number_too_great_for_the_database_is_a_letter_that_does_not_exist(graves: Shop) -> None:
    assert dead(graves, "show", str(2**63)).exit_code == 1
    assert dead(graves, "replay", str(2**64)).exit_code == 1


def test_a_message_id_of_digits_names_its_message_where_no_letter_has_that_number(shop: Shop) -> None:
    shop.order("order:1", "fail", message_id="29401")
    shop.run()
    assert parsed(dead(shop, "show", "29401", "--json"))["message_id"] == "29401"


# replay


def test_letters_are_replayed_by_number(graves: Shop) -> None:
    found = ids(graves)
    assert parsed(dead(graves, "replay", str(found["order:1"]), str(found["order:3"]), "--json")) == {
        "asked": 2,
        "replayed": 2,
        "not_found": [],
    }
    assert ids(graves).keys() == {"order:2", "order:4", "order:5"}
    ready = graves.harness.access.transport.claim(["shop.pay"], 10, "shop/1", "node")
    assert [(each.flow_id, each.failures, each.deaths) for each in ready] == [("order:1", 0, 0), ("order:3", 0, 0)]


def test_letters_are_replayed_by_message_under_the_same_id(graves: Shop) -> None:
    (kept,) = (each for each in graves.letters() if each.letter.flow_id == "order:2")
    assert parsed(dead(graves, "replay", kept.letter.message_id, "--json"))["replayed"] == 1
    (again,) = graves.harness.access.transport.claim(["shop.pay"], 10, "shop/1", "node")
    assert again.message_id == kept.letter.message_id
    assert again.envelope == kept.letter.envelope
    assert again.is_redelivery


def test_letters_are_replayed_by_group_by_flow_and_all(graves: Shop) -> None:
    (group, *_) = parsed(dead(graves, "list", "--json"))
    assert parsed(dead(graves, "replay", "--group", group["fingerprint"], "--json"))["replayed"] == 2
    assert ids(graves).keys() == {"order:3", "order:4", "order:5"}
    assert parsed(dead(graves, "replay", "--flow", "order:4", "--json"))["replayed"] == 1
    assert ids(graves).keys() == {"order:3", "order:5"}
    result = dead(graves, "replay", "--all")
    assert result.stdout == "replayed 2 of 2 dead letters\n"
    assert ids(graves) == {}


def test_one_that_killed_its_process_runs_alone_again(graves: Shop) -> None:
    dead(graves, "replay", "--flow", "order:5")
    transport = graves.harness.access.transport
    assert transport.claim(["shop.pay"], 10, "shop/1", "node") == []
    suspect = transport.claim_suspect(["shop.pay"], "shop/1", "node")
    assert suspect is not None
    # As one that was there when a process died: its deaths alone are forgotten.
    assert (suspect.flow_id, suspect.failures, suspect.deaths) == ("order:5", 0, 1)


def test_a_replay_is_in_the_journal_with_who_asked_for_it(graves: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "olga")
    dead(graves, "replay", "--flow", "order:1")
    last = graves.harness.history("order:1")[-1]
    assert (last.waypoint, last.detail) == ("replayed", "by olga")
    standing = parsed(command("trace", "order:1", "--json", "--database", graves.url))["standing"]
    assert standing == "under way"


def test_a_replayed_letter_that_dies_again_is_a_new_letter_of_the_same_message(graves: Shop) -> None:
    before = ids(graves)
    dead(graves, "replay", "--flow", "order:1")
    graves.run()
    after = ids(graves)
    assert after["order:1"] > max(before.values())


def test_the_set_is_frozen_when_it_is_asked_for(graves: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one dies while the first are replayed; it is not replayed."""
    monkeypatch.setattr(replaying, "CHUNK", 2)
    select = replaying.select_ids

    def select_then_die(*arguments: object) -> list[int]:
        found = select(*arguments)  # type: ignore[arg-type]
        graves.order("order:6", "fail")
        graves.run()
        return found

    monkeypatch.setattr("stagepost.cli.dead.select_ids", select_then_die)
    assert parsed(dead(graves, "replay", "--all", "--json")) == {"asked": 5, "replayed": 5, "not_found": []}
    assert ids(graves).keys() == {"order:6"}


def test_one_that_somebody_else_replayed_meanwhile_is_not_replayed_twice(
    graves: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    select = replaying.select_ids

    def select_and_be_late(*arguments: object) -> list[int]:
        found = select(*arguments)  # type: ignore[arg-type]
        session = graves.harness.access.session
        session.begin()
        (first, *_) = session.reader.letters(Selection("all"))
        assert session.exhume(first.id)
        session.commit()
        return found

    monkeypatch.setattr("stagepost.cli.dead.select_ids", select_and_be_late)
    assert parsed(dead(graves, "replay", "--all", "--json")) == {"asked": 5, "replayed": 4, "not_found": []}
    assert ids(graves) == {}


def test_what_is_named_twice_is_replayed_once(graves: Shop) -> None:
    number = str(ids(graves)["order:1"])
    assert parsed(dead(graves, "replay", number, number, "--json"))["replayed"] == 1


def test_one_that_does_not_exist_is_bad_news_and_the_others_are_replayed(graves: Shop) -> None:
    result = dead(graves, "replay", str(ids(graves)["order:1"]), "999", "nobody")
    assert result.exit_code == 1
    assert "replayed 1 of 1" in result.stdout
    assert "'999'" in result.stderr
    assert "'nobody'" in result.stderr


@pytest.mark.parametrize("way", [["--group", "000000000000"], ["--flow", "order:99"], ["--all"]])
def test_a_selection_without_letters_is_bad_news(way: list[str], shop: Shop) -> None:
    result = dead(shop, "replay", *way, "--json")
    assert result.exit_code == 1
    assert parsed(result) == {"asked": 0, "replayed": 0, "not_found": []}


@pytest.mark.parametrize("ways", [[], ["1", "--all"], ["--flow", "f", "--group", "g"], ["--all", "--flow", "f"]])
def test_replaying_without_saying_which_or_in_two_ways_is_refused_and_replays_nothing(
    ways: list[str], graves: Shop
) -> None:
    result = dead(graves, "replay", *ways)
    assert result.exit_code == 2
    assert "say which letters, in one way" in result.stderr
    assert len(ids(graves)) == 5


def test_replaying_works_for_a_user_without_a_name(graves: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number which no one gave a name."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert dead(graves, "replay", "--flow", "order:1").exit_code == 0


def test_a_letter_is_found_by_its_flow_too(graves: Shop) -> None:
    assert parsed(dead(graves, "show", "order:2", "--json"))["flow_id"] == "order:2"
    assert parsed(dead(graves, "replay", "order:2", "--json"))["replayed"] == 1
    assert "order:2" not in ids(graves)
