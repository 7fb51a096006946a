"""``stagepost quarantine list | show``"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stagepost.cli import main
from stagepost.ports.runs import Quarantined, RunCounts, TaskAttempt
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.givens import NOW, committed
from tests.cli.shop import parsed

ROWS = 60
LONG = "x" * 2_000_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = tmp_path / "shop.db"
    with closing(SqliteStore(path).session()) as session, committed(session):
        for number, run in enumerate(("old", "clean", "new")):
            start = session.runs.begin(run, "shop.order", f"{run}.csv", NOW + number)
            session.runs.count(TaskAttempt(run, start, 0, 1), RunCounts(None, 3, 0, 0 if run == "clean" else ROWS))
        session.runs.quarantine("old", [Quarantined("old.csv", 7, "no-id: größer\x1b[31m", None, '{"a": "漢字"}')])
        rows = [
            Quarantined(f"{n % 2}:a.csv", n, f"bad {n}: {LONG[: n * 1000]}", f"o:{n}", f"row {n}")
            for n in range(1, ROWS)
        ]
        session.runs.quarantine("new", [*rows, Quarantined("z.csv", 1, LONG, "o:z", LONG)])
    return f"sqlite:///{path}"


def quarantine(url: str, *words: str, charset: str = "utf-8") -> Result:
    done = CliRunner(charset=charset).invoke(main, ["quarantine", *words, "--database", url])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_runs_that_quarantined_rows_are_listed_newest_first(url: str) -> None:
    found = parsed(quarantine(url, "list", "--json"))
    assert [(each["id"], each["source"], each["counts"]["quarantined"]) for each in found] == [
        ("new", "new.csv", ROWS),
        ("old", "old.csv", ROWS),
    ]
    text = quarantine(url, "list").stdout
    assert text.index("new.csv") < text.index("old.csv")
    assert "clean" not in text


def test_the_rows_of_a_run_are_listed_in_parts_that_end_where_the_next_begins(url: str) -> None:
    places: list[tuple[str, int]] = []
    after: list[str] = []
    while True:
        rows = parsed(quarantine(url, "list", "--run", "new", "--limit", "25", "--json", *after))
        places += [(row["file"], row["record"]) for row in rows]
        text = quarantine(url, "list", "--run", "new", "--limit", "25", *after).stdout
        assert len(text) < 50_000
        if "there are more" not in text:
            break
        after = ["--after", text.split("--after ")[1].split(" lists")[0]]
    assert places == sorted(places)
    assert len(set(places)) == len(places) == ROWS


def test_a_row_is_shown_with_its_reason_and_its_beginning_and_as_json_whole(url: str) -> None:
    text = quarantine(url, "show", "new", "1:a.csv", "3").stdout
    assert "bad 3" in text
    assert "row 3" in text
    assert "o:3" in text
    assert len(quarantine(url, "show", "new", "z.csv", "1").stdout) < 5_000_000
    assert parsed(quarantine(url, "show", "new", "z.csv", "1", "--json"))["row"] == LONG


def test_an_ascii_terminal_is_enough_and_gets_nothing_to_obey(url: str) -> None:
    for words in (["list"], ["list", "--run", "old"], ["show", "old", "old.csv", "7"], ["--help"], ["list", "--help"]):
        place = url
        done = CliRunner(charset="ascii").invoke(
            main, ["quarantine", *words, *([] if "--help" in words else ["--database", place])]
        )
        assert done.exit_code == 0, done.output
        assert done.stdout.isascii()
        assert "\x1b" not in done.stdout


def test_a_file_is_named_as_in_its_folder(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(SqliteStore(tmp_path / "shop.db").session()) as session, committed(session):
        session.runs.quarantine("old", [Quarantined(str(tmp_path / "orders.csv"), 17, "no-id: its row", None, "{}")])
    assert "no-id: its row" in quarantine(url, "show", "old", "orders.csv", "17").stdout
    assert "no-id: gr" in quarantine(url, "show", "old", "old.csv", "7").stdout


def test_what_is_not_there_is_said(url: str, tmp_path: Path) -> None:
    missing = quarantine(url, "show", "new", "1:a.csv", "4")
    assert (missing.exit_code, "quarantined no record 4 of 1:a.csv" in missing.stderr) == (1, True)
    assert quarantine(url, "list", "--run", "none").stdout == "run none has no quarantined rows there\n"
    assert quarantine(url, "list", "--run", "new", "--after", "a.csv").exit_code == 2
    assert quarantine(f"sqlite:///{tmp_path}/no.db", "list").exit_code != 0
