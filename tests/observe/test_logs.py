"""How worker processes log: a line of JSON each, for programs, or of text, for people."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from stagepost import Refuse
from stagepost.app.logs import FIELDS, JsonLines
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.transaction.outcome import Abandoned, Buried, Lost, Outcome, Redelivered
from stagepost.transaction.outcome_log import log_outcome

CLAIM = Claim(7, "shop/1", 3, "shop.pay", "m7", "order:7", 1, 0, 0, b"{}")


def line(message: str, *arguments: object, error: BaseException | None = None, **extra: Any) -> dict[str, Any]:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("stagepost.x", logging.WARNING, "x.py", 1, message, arguments, info)
    record.__dict__.update(extra)
    text = JsonLines().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_says_when_how_bad_who_where_and_what() -> None:
    found = line("took over %d messages", 3)
    assert found.pop("at").endswith("Z")
    assert isinstance(found.pop("process"), int)
    assert found == {"level": "warning", "logger": "stagepost.x", "text": "took over 3 messages"}


def test_the_moment_is_utc_with_milliseconds() -> None:
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "text", (), None)
    record.created = 1_700_000_000.045
    record.msecs = 45.0
    assert json.loads(JsonLines().format(record))["at"] == "2023-11-14T22:13:20.045Z"


def test_ids_and_the_event_are_fields_of_their_own_and_nothing_else_is() -> None:
    extra: dict[str, Any] = dict.fromkeys(FIELDS, "value") | {"password": "secret"}
    found = line("text", **extra)
    assert found.keys() - {"at", "level", "process", "logger", "text"} == set(FIELDS)


def test_a_stack_is_one_field_of_the_same_line() -> None:
    found = line("it failed", error=raised(ValueError("two\nlines")))
    assert found["stack"].startswith("Traceback")
    assert found["stack"].endswith("ValueError: two\nlines")


@pytest.mark.parametrize("text", ["two\nlines", 'a "quoted" word', "\ud800 half a pair", "ünïcödé", "\x00\x1b[31m"])
def test_whatever_the_text_a_line_stays_one_line_and_comes_back_as_it_was(text: str) -> None:
    assert line("%s", text)["text"] == text


def test_what_is_no_text_in_a_field_is_written_all_the_same() -> None:
    assert line("text", owner=ValueError("x"))["owner"] == "x"


def logged(outcome: Outcome, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    with caplog.at_level(logging.DEBUG, "stagepost"):
        log_outcome(CLAIM, outcome)
    return caplog.records


def raised(error: BaseException) -> BaseException:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as found:
        fail()
    return found.value


def test_a_failed_attempt_is_one_line_without_a_stack(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = logged(Redelivered(2 * SECOND, raised(ValueError("no money\nat all"))), caplog)
    assert record.levelno == logging.WARNING
    assert "stack" not in record.__dict__
    text = record.getMessage()
    assert "ValueError: no money" in text
    assert "at all" not in text
    assert "attempt 2" in text
    assert "2.0 s" in text
    assert record.__dict__["event"] == "attempt-failed"
    assert record.__dict__["message_id"] == "m7"
    assert record.__dict__["flow_id"] == "order:7"
    assert record.__dict__["stage"] == "shop.pay"
    assert record.__dict__["attempt"] == 2


def test_the_last_attempt_brings_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = logged(Buried("exhausted", raised(ValueError("no money"))), caplog)
    assert record.levelno == logging.ERROR
    assert record.__dict__["stack"].startswith("Traceback")
    assert "exhausted" in record.getMessage()
    assert record.__dict__["event"] == "message-dead"


def test_a_refusal_is_the_handlers_own_word_and_brings_none(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = logged(Buried("refused", raised(Refuse("the account is closed"))), caplog)
    assert record.levelno == logging.WARNING
    assert "stack" not in record.__dict__
    assert "the account is closed" in record.getMessage()


def test_a_lost_lease_is_told(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = logged(Lost(), caplog)
    assert record.__dict__["event"] == "lease-lost"


def test_what_was_given_up_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(Abandoned(), caplog) == []


def test_an_error_that_cannot_be_printed_is_logged_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    (record,) = logged(Redelivered(SECOND, raised(Unprintable())), caplog)
    assert "Unprintable" in record.getMessage()
