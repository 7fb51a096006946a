"""What others have written, and where it is shown: an ASCII terminal, escape sequences, texts of many megabytes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from stagepost.cli import main
from stagepost.ports.journal import Waypoint
from stagepost.testing.contract.givens import committed
from tests.cli.shop import Shop, command, told_in_one_paragraph

# A colour, a line of its own, a character that no terminal has, a NUL, and half a pair.
HOSTILE = "red \x1b[31m\r\nFAKE \x9b2J\0 \u202e end"
COMMANDS = [
    ["status"],
    ["trace", "order:1"],
    ["dead", "list"],
    ["dead", "list", "--each"],
    ["dead", "show", "1"],
    ["doctor"],
]


def refuse(shop: Shop, reason: str) -> None:
    """As a handler would, whose reason is what some other system said."""
    session = shop.harness.access.session
    shop.order("order:1", "refuse")
    shop.run()
    (letter,) = shop.letters()
    with committed(session):
        flow = letter.letter.message_id, "order:1", 1, 1
        session.journal.record([Waypoint("failed", 1, HOSTILE, "shop.pay", *flow, detail=reason)])
    changed = {
        "causes": json.dumps([{"type": "Odd", "message": reason}]),
        "stack": f"Traceback\n{reason}",
        "odd": HOSTILE,
        "envelope": reason.encode(errors="replace"),
    }
    with closing(sqlite3.connect(shop.path)) as connection, connection:
        connection.execute(
            "UPDATE stagepost_dead_letter"
            " SET causes = :causes, stack = :stack, node = :odd, declared_at = :odd, envelope = :envelope",
            changed,
        )


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_what_others_wrote_is_shown_without_what_a_terminal_would_obey(arguments: list[str], shop: Shop) -> None:
    refuse(shop, HOSTILE)
    result = command(*arguments, "--database", shop.url)
    assert result.exit_code == 0, result.output
    shown = set(result.stdout) - {"\n"}
    assert shown == {each for each in shown if each.isprintable()}
    if arguments[0] != "doctor":
        assert not any(line.startswith("FAKE") for line in result.stdout.splitlines() if arguments[-1] != "1")


@pytest.mark.parametrize("arguments", [*COMMANDS, ["--help"], ["worker", "--help"]], ids=" ".join)
def test_an_ascii_terminal_is_enough(arguments: list[str], shop: Shop) -> None:
    refuse(shop, "größer … 漢字")
    place = [] if "--help" in arguments else ["--database", shop.url]
    result = CliRunner(charset="ascii").invoke(main, [*arguments, *place], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.stdout.isascii()
    if arguments[0] == "trace":
        assert "`-- shop.pay" in result.stdout


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_text_of_many_megabytes_is_shown_by_its_beginning(arguments: list[str], shop: Shop) -> None:
    refuse(shop, "x" * 20_000_000)
    result = command(*arguments, "--database", shop.url)
    assert result.exit_code == 0
    # A stack that is in the store is shown whole: Stagepost itself writes none that is so long.
    longest = max(len(line) for line in result.stdout.splitlines())
    assert longest < 100_000 or arguments == ["dead", "show", "1"]


def test_a_flow_of_many_messages_and_one_of_great_depth_are_shown(shop: Shop) -> None:
    session = shop.harness.access.session
    for flow, is_deep in (("wide", False), ("deep", True)):
        with committed(session):
            session.journal.record([Waypoint("accepted", 1, "node", "shop.pay", f"{flow}:0", flow, 0, 1, kind="send")])
            session.journal.record(
                [
                    Waypoint(
                        "sent",
                        n,
                        "node",
                        "shop.ship",
                        f"{flow}:{n}",
                        flow,
                        0,
                        1,
                        f"{flow}:{n - 1 if is_deep else 0}",
                        "next",
                    )
                    for n in range(1, 10_000)
                ]
            )
        result = command("trace", flow, "--database", shop.url)
        assert result.exit_code == 0
        assert result.stdout.startswith(f"{flow}  under way, 10000 messages")
        assert len(result.stdout.splitlines()) == 1 + 2 * 10_000
        assert len(result.stdout) < 10_000_000


# What cannot be a database


@pytest.mark.parametrize("arguments", [["status"], ["doctor"], ["migrate"], ["dead", "list"]], ids=" ".join)
@pytest.mark.parametrize(
    "name", ["a\0b.db", "x" * 300, f"/tmp/{'x/' * 3000}a.db"], ids=["NUL", "long name", "long path"]
)
def test_a_name_that_no_file_can_have_is_told(name: str, arguments: list[str]) -> None:
    Path("stagepost.toml").write_text(f"database = {json.dumps(f'sqlite:///{name}')}")
    result = command(*arguments)
    assert result.exit_code in (2, 3)
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    "change", ["UPDATE stagepost_meta SET value = 'two' WHERE key = 'version'", "DELETE FROM stagepost_meta"]
)
@pytest.mark.parametrize("arguments", [["status"], ["migrate"]], ids=" ".join)
def test_tables_whose_version_is_no_number_are_told(change: str, arguments: list[str], shop: Shop) -> None:
    with closing(sqlite3.connect(shop.path)) as connection, connection:
        connection.execute(change)
    told = told_in_one_paragraph(command(*arguments, "--database", shop.url), 3)
    assert "stagepost_meta says that its tables are of version" in told
