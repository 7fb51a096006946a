"""Lines to records, and records to cells: what Python's own ``csv`` writes comes back, and wrong quotes end a file."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.pipeline import csv_records
from stagepost.pipeline.csv_records import KEPT_BYTES, cells, cut

CELLS = st.text(alphabet='ab ,;"\n\r\u00e9', max_size=6)
ROWS = st.lists(st.lists(CELLS, min_size=2, max_size=4), min_size=1, max_size=6)


def split(text: str) -> list[bytes]:
    """Lines as Spark gives them: without line feeds, and none after the last one."""
    lines = text.encode().split(b"\n")
    return lines if lines[-1] else lines[:-1]


@given(rows=ROWS, separator=st.sampled_from([",", ";", "a"]), end=st.sampled_from(["\n", "\r\n"]))
def test_what_python_writes_is_read_back(rows: list[list[str]], separator: str, end: str) -> None:
    file = io.StringIO()
    csv.writer(file, delimiter=separator, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    records = list(cut(split(file.getvalue()), separator.encode()))
    assert [reason for _, reason in records] == [None] * len(rows)
    assert [cells(text.decode(), separator) for text, _ in records] == rows


@given(rows=ROWS)
def test_what_python_quotes_only_where_it_must_is_read_back(rows: list[list[str]]) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator="\r\n").writerows(rows)
    assert [cells(text.decode(), ",") for text, _ in cut(split(file.getvalue()), b",")] == rows


@given(text=st.text(alphabet='a,"\n', max_size=30))
def test_all_of_a_file_is_in_its_records_whatever_its_quotes_are(text: str) -> None:
    """In order, and with a reason only for the last one; strict csv refuses what has one."""
    records = list(cut(split(text), b","))
    assert [line for line in text.split("\n") if line] == [
        line for record, _ in records for line in record.decode().split("\n") if line
    ]
    assert [reason for _, reason in records[:-1]] == [None] * (len(records) - 1)
    for record, reason in records:
        try:
            (strictly,) = csv.reader([record.decode()], strict=True)
        except csv.Error:
            assert reason is not None
        else:
            # csv takes a quote within a cell that is not quoted.
            assert reason is not None or cells(record.decode(), ",") == strictly


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['1,"a', "b"], "the quote that opens in line 1 is never closed"),
        (['1,"a', 'b","c', "d"], "the quote that opens in line 2 is never closed"),
        (['1,"a', '""b""', "c"], "the quote that opens in line 1 is never closed"),
        (["fine", 'a"b'], "line 2 has a quote"),
        (['1,"a', 'b"c'], "line 1 has a quote"),
        (['1,"a', 'b","c"d'], "line 2 has a quote"),
        (['"a" ,b'], "line 1 has a quote"),
    ],
)
def test_the_line_of_the_quote_is_said(lines: list[str], says: str) -> None:
    (*_, (_, reason)) = cut([line.encode() for line in lines], b",")
    assert reason is not None
    assert reason.startswith(says)


def test_a_record_that_is_too_long_for_memory_is_set_aside_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_records, "RECORD_BYTES_MAX", 100_000)
    lines = [b"1,fine", b'2,"', *[b"x" * 999] * 200, b'"', b"3,fine"]
    one, (text, reason), three = cut(lines, b",")
    assert (one, three) == ((b"1,fine", None), (b"3,fine", None))
    assert len(text) == KEPT_BYTES
    assert reason == "the record has 200006 bytes, and at most 100000 fit"


def test_what_is_held_of_a_quote_that_is_never_closed_is_bounded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tracemalloc

    monkeypatch.setattr(csv_records, "RECORD_BYTES_MAX", 100_000)
    line = b"x" * 99
    tracemalloc.start()
    ((_, reason),) = cut(iter([b'"', *[line] * 300_000]), b",")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "30000002 bytes" in str(reason)
    assert peak < 10_000_000
