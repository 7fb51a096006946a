"""``stagepost purge``"""

from __future__ import annotations

from stagepost.app.app import engine_of
from stagepost.flow.clock import HOUR
from stagepost.testing.contract.givens import NOW, committed
from tests.cli.shop import Shop, command, parsed, told_in_one_paragraph

HOURS = 400 * 24 + 1


def grow_old(shop: Shop) -> None:
    session = shop.harness.access.session
    with committed(session):
        for hour in range(HOURS):
            session.retention.count_hour(NOW + hour * HOUR)


def test_an_empty_store_has_nothing_to_purge(shop: Shop) -> None:
    result = command("purge", "--database", shop.url)
    assert result.exit_code == 0
    assert "nothing is old enough to go" in result.stdout


def test_a_dry_run_says_what_would_go_and_removes_nothing(shop: Shop) -> None:
    shop.order("order:1")
    shop.order("order:2", "fail")
    shop.run()
    grow_old(shop)
    ids = {"removed": 1, "pinned": 1}
    wanted = {"ids of shop.pay": ids, "lines of the journal": {"removed": 6, "pinned": 4}}
    told = parsed(command("purge", "--dry-run", "--json", "--database", shop.url))["rows"]
    saved = {what: each.pop("saves_bytes") for what, each in told.items()}
    assert told == wanted
    assert all(150 * wanted[what]["removed"] < each < 400 * wanted[what]["removed"] for what, each in saved.items())
    text = command("purge", "--dry-run", "--database", shop.url).stdout
    assert "would go" in text
    assert [each.split()[-4:] for each in text.splitlines()[1:-1]] == [
        ["1", "1", str(saved["ids of shop.pay"]), "bytes"],
        ["6", "4", "1.6", "kB"],
    ]
    assert text.splitlines()[-1] == "it would save about 1.8 kB"
    found = parsed(command("purge", "--json", "--database", shop.url))
    assert (found["dry_run"], found["rows"]) == (False, wanted)
    assert parsed(command("purge", "--json", "--database", shop.url))["rows"] == {
        "ids of shop.pay": {"removed": 0, "pinned": 1},
        "lines of the journal": {"removed": 0, "pinned": 4},
    }


def test_a_purge_counts_its_hour_and_a_dry_run_does_not(shop: Shop) -> None:
    command("purge", "--dry-run", "--database", shop.url)
    retention = shop.harness.access.session.retention
    assert retention.hours() == 0
    command("purge", "--database", shop.url)
    assert retention.is_counted(engine_of(shop.app).clock.now())


def test_a_store_that_does_not_exist_is_not_made(shop: Shop) -> None:
    missing = f"sqlite:///{shop.path}-typo"
    assert "does not exist" in told_in_one_paragraph(command("purge", "--database", missing), 3)


def test_status_tells_how_long_ids_are_kept_and_how_old_they_are(shop: Shop) -> None:
    shop.order("order:1")
    grow_old(shop)
    found = {
        each.pop("what"): each for each in parsed(command("status", "--json", "--database", shop.url))["retention"]
    }
    by_age = {"until": "", "rows": None}
    assert found["ids of shop.pay"] == {"hours": 400 * 24, "oldest_hours": HOURS, **by_age}
    assert found["lines of the journal"] == {"hours": 90 * 24, "oldest_hours": HOURS, **by_age}
    assert found["dead letters"] == {"hours": None, "oldest_hours": None, **by_age}
    assert found["hours of housekeeping"] == {
        "hours": None,
        "oldest_hours": None,
        "until": "one an hour",
        "rows": HOURS,
    }
    assert set(found) >= {"replays", "bulk runs", "findings of audits"}
    assert "ids of shop.pay" in command("status", "--database", shop.url).stdout


def test_a_broker_that_does_not_come_back_is_forgotten_by_its_url(shop: Shop) -> None:
    session = shop.harness.access.session
    with committed(session):
        session.retention.note_consumer("c1", "amqp://gone", ["pay"])
    wrong = command("purge", "--forget-broker", "amqp://typo", "--database", shop.url)
    assert wrong.exit_code == 1
    assert "it knows: amqp://gone" in wrong.stderr
    assert command("purge", "--forget-broker", "amqp://gone", "--database", shop.url).exit_code == 0
    assert session.retention.brokers() == []


def test_status_shows_ages_as_counted_hours_and_says_that_one_may_be_minutes(shop: Shop) -> None:
    shop.order("order:1")

    def shown() -> list[str]:
        (line,) = (each for each in status().splitlines() if "ids of shop.pay" in each)
        return line.split("shop.pay")[1].split()

    def status() -> str:
        return command("status", "--database", shop.url).stdout

    assert shown() == ["400", "d", "0", "h"]
    session = shop.harness.access.session
    with committed(session):
        session.retention.count_hour(NOW)
    assert shown() == ["400", "d", "1", "h"]
    assert "1 h may be minutes" in " ".join(status().split())
    with committed(session):
        for hour in range(1, 50):
            session.retention.count_hour(NOW + hour * HOUR)
    assert shown() == ["400", "d", "2", "d", "2", "h"]
