"""``stagepost dead list | show``"""

from __future__ import annotations

import json

import pytest

from tests.cli.graves import dead, ids
from tests.cli.shop import Shop, parsed

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


def test_a_message_id_of_digits_names_its_message_where_no_letter_has_that_number(shop: Shop) -> None:
    shop.order("order:1", "fail", message_id="29401")
    shop.run()
    assert parsed(dead(shop, "show", "29401", "--json"))["message_id"] == "29401"


def test_a_letter_is_found_by_its_flow_too(graves: Shop) -> None:
    assert parsed(dead(graves, "show", "order:2", "--json"))["flow_id"] == "order:2"
