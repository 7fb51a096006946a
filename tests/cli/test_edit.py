"""``stagepost dead edit``"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stagepost.cli import main
from stagepost.ports.queue import QueueRow
from tests.cli.graves import dead, ids
from tests.cli.shop import Shop, command, parsed, started, told_in_one_paragraph
from tests.processes import ROOT

MENDED = 'messages.0.body.fault=""'


@pytest.fixture
def failed(shop: Shop) -> Shop:
    shop.order("order:1", "fail", message_id="first")
    shop.run()
    return shop


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes $EDITOR a script of that body: ``text`` is what the file holds, and what it shall hold."""

    def use(body: str) -> None:
        script = tmp_path / "editor.py"
        before = "import pathlib, sys\nfile = pathlib.Path(sys.argv[1])\ntext = file.read_text()"
        script.write_text(f"{before}\n{body}\nfile.write_text(text)\n")
        monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    return use


def drafts(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("stagepost-letter-*"))


def is_untouched(shop: Shop) -> bool:
    return ids(shop).keys() == {"order:1"} and [each.waypoint for each in shop.harness.history("order:1")][-1] == "dead"


# Editing


def test_what_is_set_goes_on_under_a_new_id(failed: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "olga")
    told = parsed(dead(failed, "edit", "first", "--set", MENDED, "--set", "messages.0.body.number=7", "--json"))
    assert told["message_id"] == "first"
    assert (told["flow_id"], told["stage"]) == ("order:1", "shop.pay")
    assert ids(failed) == {}
    *_, old, new = failed.harness.history("order:1")
    assert (old.message_id, old.waypoint, old.detail) == ("first", "edited", f"by olga, into {told['new_message_id']}")
    assert (new.message_id, new.waypoint, new.cause_id) == (told["new_message_id"], "sent", "first")
    failed.run()
    assert [each.stage for each in failed.harness.history("order:1") if each.waypoint == "committed"] == [
        "shop.pay",
        "shop.ship",
    ]


def test_a_trace_shows_what_became_of_the_old_message(failed: Shop) -> None:
    new_id = parsed(dead(failed, "edit", "first", "--set", MENDED, "--json"))["new_message_id"]
    text = command("trace", "order:1", "--database", failed.url).stdout
    assert f"into {new_id}" in text
    assert text.index("edited") < text.index("waiting")


def test_the_editor_is_given_the_message_and_its_text_is_read(failed: Shop, editor: Any, tmp_path: Path) -> None:
    editor('assert \'"fault": "fail"\' in text; text = text.replace("fail", "")')
    result = dead(failed, "edit", str(ids(failed)["order:1"]))
    assert result.exit_code == 0
    assert "message first was edited and sent to shop.pay as " in result.stdout
    failed.run()
    assert ids(failed) == {}
    assert drafts(tmp_path) == []


@pytest.mark.parametrize("body", ["", "text = text.replace('  ', '    ')", "text = text.strip()"])
def test_an_editor_that_leaves_it_as_it_is_changes_nothing(
    failed: Shop, editor: Any, tmp_path: Path, body: str
) -> None:
    editor(body)
    result = dead(failed, "edit", "first")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "nothing was changed, so no message was sent\n")
    assert is_untouched(failed)
    assert drafts(tmp_path) == []


def test_an_editor_that_ends_with_an_error_changes_nothing(failed: Shop, editor: Any, tmp_path: Path) -> None:
    editor('file.write_text(text.replace("fail", "")); sys.exit(1)')
    assert dead(failed, "edit", "first").exit_code == 1
    assert is_untouched(failed)
    assert drafts(tmp_path) == []


def test_what_was_written_is_not_lost_when_it_is_refused(failed: Shop, editor: Any, tmp_path: Path) -> None:
    editor('text = text.replace(\'"fail"\', "")')
    result = dead(failed, "edit", "first")
    assert result.exit_code == 2
    assert "no longer the letter's JSON" in result.stderr
    (draft,) = drafts(tmp_path)
    assert f"your text is in {draft}" in result.stderr
    assert draft.stat().st_mode & 0o777 == 0o600
    assert is_untouched(failed)
    draft.write_text(draft.read_text().replace('"fault": ', '"fault": ""'))
    assert dead(failed, "edit", "first", "--file", str(draft)).exit_code == 0


def test_it_is_read_from_a_file_or_from_standard_input(failed: Shop) -> None:
    shown = json.dumps({"messages": [{"type": "Order", "body": {"number": 3}}]})
    result = CliRunner().invoke(main, ["dead", "edit", "first", "--file", "-", "--database", failed.url], input=shown)
    assert result.exit_code == 0, result.output
    failed.run()
    assert ids(failed) == {}


def test_a_draft_that_is_not_utf_8_is_refused_and_kept(failed: Shop, editor: Any, tmp_path: Path) -> None:
    editor("file.write_bytes(text.replace('fail', 'M\u00fcller').encode('latin-1')); sys.exit()")
    result = dead(failed, "edit", "first")
    assert result.exit_code == 2
    assert "no longer the letter's JSON" in result.stderr
    assert [str(draft) in result.stderr for draft in drafts(tmp_path)] == [True]
    assert is_untouched(failed)


# What is refused


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--set", "messages.0.body.fault=none"], "a text needs its quotes"),
        (["--set", "messages.0.type=1"], "no longer the letter's JSON"),
        (["--set", 'messages.0.type="Parcel"'], "neither the types"),
    ],
)
def test_what_is_no_json_or_another_message_is_refused(failed: Shop, arguments: list[str], why: str) -> None:
    assert why in told_in_one_paragraph(dead(failed, "edit", "first", *arguments), 2)
    assert is_untouched(failed)


@pytest.mark.parametrize("wanted", ["999", "nobody"])
def test_a_letter_that_does_not_exist_is_bad_news(failed: Shop, wanted: str) -> None:
    result = dead(failed, "edit", wanted, "--set", MENDED)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"there is no dead letter {wanted!r}" in result.stderr


def test_bytes_that_are_no_envelope_cannot_be_edited(shop: Shop) -> None:
    session = shop.harness.access.session
    session.begin()
    session.queue.enqueue([QueueRow("shop.pay", "m1", "order:1", 0, 0, 0, 1, b"\xff no envelope", None)])
    session.commit()
    shop.run()
    said = told_in_one_paragraph(dead(shop, "edit", "m1", "--set", MENDED), 2)
    assert "the letter is not an envelope" in said
    assert "stays unchanged" in said
    assert ids(shop).keys() == {"order:1"}


# With the app


APP = """
from tests.cli.shop import pay, ship
from stagepost import App

app = App("shop")
app.endpoint("shop.pay")(pay)
app.endpoint("shop.ship")(ship)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "myshop.py").write_text(APP)
    (tmp_path / "other.py").write_text('from stagepost import App\n\napp = App("other")\n')
    return tmp_path


def test_with_the_app_what_its_stage_cannot_read_is_refused(failed: Shop, folder: Path) -> None:
    wrong = ["dead", "edit", "first", "--set", 'messages.0.body.number="seven"', "--database", failed.url]
    result = started(folder, *wrong, "--app", "myshop:app", PYTHONPATH=f"{folder}:{ROOT}:{ROOT / 'src'}")
    assert result.returncode == 2
    assert "shop.pay could not read it: it does not fit Order" in result.stderr
    assert is_untouched(failed)
    right = ["dead", "edit", "first", "--set", MENDED, "--database", failed.url, "--app", "myshop:app"]
    result = started(folder, *right, PYTHONPATH=f"{folder}:{ROOT}:{ROOT / 'src'}")
    assert result.returncode == 0, result.stderr
    assert ids(failed) == {}


def test_an_app_without_the_letters_stage_is_refused(failed: Shop, folder: Path) -> None:
    arguments = ["dead", "edit", "first", "--set", MENDED, "--database", failed.url, "--app", "other:app"]
    result = started(folder, *arguments, PYTHONPATH=f"{folder}:{ROOT}:{ROOT / 'src'}")
    assert result.returncode == 2
    assert "other:app does not declare shop.pay" in result.stderr
    assert is_untouched(failed)


def test_without_the_app_only_the_json_is_checked(failed: Shop) -> None:
    assert dead(failed, "edit", "first", "--set", 'messages.0.body.number="seven"').exit_code == 0
    failed.run()
    # It died again, as another message.
    (kept,) = failed.letters()
    assert kept.letter.message_id != "first"
    assert kept.letter.reason == "undecodable"
