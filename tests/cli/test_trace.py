"""``stagepost trace``"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shop import Shop, command, parsed, told_in_one_paragraph


def test_a_flow_is_printed_as_a_tree_from_what_came_in_to_what_it_caused(shop: Shop) -> None:
    first = shop.order("order:1")
    shop.run()
    result = command("trace", "order:1", "--database", shop.url)
    assert result.exit_code == 0
    head, *lines = result.stdout.splitlines()
    assert head.startswith("order:1  completed, 2 messages, began 20")
    indents = {line.split()[-1]: line for line in lines if "shop." in line and "  committed  " in line}
    assert indents.keys() > {first}
    pay, ship = (next(line for line in lines if f"─ {stage}  " in line) for stage in ("shop.pay", "shop.ship"))
    assert "request" in pay
    assert "reply" in ship
    # What it caused stands below it, and further in.
    assert lines.index(ship) > lines.index(pay)
    assert ship.index("shop.ship") > pay.index("shop.pay")
    words = [word for line in lines for word in line.split()]
    assert [word for word in words if word in ("accepted", "received", "sent")] == [
        "accepted",
        "received",
        "sent",
        "received",
    ]


def test_the_id_of_one_of_its_messages_names_the_flow_as_well(shop: Shop) -> None:
    first = shop.order("order:1")
    shop.run()
    by_flow = parsed(command("trace", "order:1", "--json", "--database", shop.url))
    for message in by_flow["messages"]:
        assert parsed(command("trace", message["message_id"], "--json", "--database", shop.url)) == by_flow
    assert first in [message["message_id"] for message in by_flow["messages"]]


def test_json_has_every_waypoint_of_every_message_with_its_cause(shop: Shop) -> None:
    shop.order("order:1")
    shop.run()
    found = parsed(command("trace", "order:1", "--json", "--database", shop.url))
    assert found["flow_id"] == "order:1"
    assert found["standing"] == "completed"
    paid, shipped = found["messages"]
    assert (paid["stage"], paid["cause_id"], paid["standing"]) == ("shop.pay", None, "committed")
    assert (shipped["stage"], shipped["cause_id"], shipped["kind"]) == ("shop.ship", paid["message_id"], "reply")
    assert [each["waypoint"] for each in paid["waypoints"]] == ["accepted", "received", "committed"]
    assert [each["waypoint"] for each in shipped["waypoints"]] == ["sent", "received", "committed"]
    assert paid["waypoints"][2]["ms"] >= 0
    assert all(each["at"] > 1_600_000_000_000_000 for each in paid["waypoints"])


def test_a_flow_that_waits_is_under_way_and_one_with_a_dead_letter_is_dead(shop: Shop) -> None:
    shop.order("order:dead", "fail-late")
    shop.run()
    shop.order("order:waiting")
    assert parsed(command("trace", "order:waiting", "--json", "--database", shop.url))["standing"] == "under way"
    assert parsed(command("trace", "order:dead", "--json", "--database", shop.url))["standing"] == "dead"
    text = command("trace", "order:dead", "--database", shop.url).stdout
    assert "dead" in text.splitlines()[0]
    assert "LookupError: no address" in text


def test_what_looks_like_markup_is_printed_as_it_is(shop: Shop) -> None:
    shop.order("order:[bold]1[/bold]", "refuse")
    shop.run()
    text = command("trace", "order:[bold]1[/bold]", "--database", shop.url).stdout
    assert text.startswith("order:[bold]1[/bold]  dead")
    assert "the account is [closed]" in text


def test_what_looks_like_an_emoji_is_printed_as_it_is(shop: Shop) -> None:
    shop.order("order:100:7", "refuse")
    shop.run()
    assert command("trace", "order:100:7", "--database", shop.url).stdout.startswith("order:100:7  dead")


def test_an_id_that_the_journal_does_not_know_is_bad_news(shop: Shop) -> None:
    result = command("trace", "order:2", "--database", shop.url)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "'order:2'" in result.stderr
    as_json = command("trace", "order:2", "--json", "--database", shop.url)
    assert as_json.exit_code == 1
    assert parsed(as_json) is None


def test_where_messages_are_in_another_database_none_but_that_is_needed(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.order("order:1", "refuse")
    shop.run()
    monkeypatch.setenv("STAGEPOST_QUEUE", shop.url)
    monkeypatch.setenv("STAGEPOST_DATABASE", f"sqlite:///{tmp_path}/away.db")
    for words in (("trace", "order:1"), ("dead", "list"), ("dead", "show", "1")):
        assert command(*words).exit_code == 0, words
    assert "away.db does not exist" in command("status").stderr


@pytest.mark.parametrize("words", [["trace", "order:1"], ["replay", "--all"], ["replay", "--all", "--archived"]])
def test_a_named_folder_that_is_no_archive_is_refused_before_the_store_was_ever_archived(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    shop.order("order:1", "fail")
    shop.run()
    refused = command(*words, "--archive", str(tmp_path / "typo"), "--database", shop.url)
    assert f"{tmp_path / 'typo'} is no archive of Stagepost" in told_in_one_paragraph(refused, 2)
    assert len(shop.letters()) == 1
    # The settings may name the folder before the first archiver makes it.
    monkeypatch.setenv("STAGEPOST_ARCHIVE", str(tmp_path / "later"))
    assert "is no archive" not in command(*words, "--database", shop.url).stderr
