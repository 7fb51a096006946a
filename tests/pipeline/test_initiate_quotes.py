"""``stagepost initiate``: quotes and line breaks in CSV files as RFC 4180 defines them, and wrong quotes."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from stagepost.pipeline.csv_records import KEPT_BYTES
from stagepost.pipeline.jobs.checking import Checker, ReadSettings
from stagepost.pipeline.jobs.records import Numbering
from tests.pipeline.books import Books
from tests.pipeline.commands import Answer, Cli
from tests.pipeline.shop import Note
from tests.pipeline.test_initiate_books import many_tasks

__all__ = ["many_tasks"]


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_bytes((end.join(lines) + end).encode())
    return path


def start(cli: Cli, *files: Path | str, separator: str = ",") -> Answer:
    return cli.initiate(*files, "--separator", separator, "--flow-prefix", "n", to="shop.note", by="id")


def notes(books: Books) -> dict[str, str]:
    return {flow.partition(":")[2]: note.text for flow, note in books.waiting_messages().items()}


def counted(answer: Answer) -> tuple[int, int, int]:
    """Rows in, started, quarantined, of a run whose books balance."""
    assert answer.json["balanced"], answer
    return answer.json["rows_in"], answer.json["started"], answer.json["quarantined"]


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("order", ["id,text", "text,id"])
def test_a_cell_with_line_breaks_is_read_in_any_column(
    cli: Cli, books: Books, tmp_path: Path, order: str, end: str
) -> None:
    texts = {
        "1": f"line one{end}line two",
        "2": f"{end}{end}",
        "3": "no break",
        "4": f'she said ""yes"",{end}""no""{end}',
        "5": "",
    }
    rows = [f'{number},"{text}"' if order == "id,text" else f'"{text}",{number}' for number, text in texts.items()]
    answer = start(cli, write(tmp_path / "notes.csv", order, "", *rows, end=end))
    assert counted(answer) == (5, 5, 0)
    assert notes(books) == {number: text.replace('""', '"') for number, text in texts.items()}


def test_a_quote_that_is_never_closed_ends_the_file_there(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = write(tmp_path / "notes.csv", "id,text", "1,fine", '2,"two', 'lines"', '3,"pay 100', "4,fine", "5,fine")
    answer = start(cli, file)
    assert counted(answer) == (3, 2, 1)
    assert notes(books) == {"1": "fine", "2": "two\nlines"}
    ((name, record, reason),) = books.quarantine()
    assert (name, record) == ("notes.csv", 3)
    assert reason.startswith("malformed: the quote that opens in line 5 is never closed")
    assert "25 bytes, was not started, and it is kept here. Correct the quote" in reason
    assert books.text_of("notes.csv", 3) == '3,"pay 100\n4,fine\n5,fine'


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (['5,"pay 100', '6,"pay 200', "7,fine"], 3),
        (['5,pay "100"', "6,fine"], 3),
        (['5," quoted" ', "6,fine"], 3),
        (['5, "quoted"', "6,fine"], 3),
        (['"5"6,fine', "7,fine"], 3),
        (['5,"a', 'b" c', "6,fine"], 3),
        (['5,"a', 'b",c"d', "6,fine"], 4),
        (['5,"x""', 'y"', '6,5"'], 5),
    ],
)
def test_from_a_quote_that_is_not_allowed_nothing_of_the_rest_is_started(
    cli: Cli, books: Books, tmp_path: Path, lines: list[str], line: int
) -> None:
    """Neither flow 5 with another text than it has, nor one that stands within its quotes."""
    file = write(tmp_path / "notes.csv", "id,text", '1,"one, ""1"""', *lines)
    other = write(tmp_path / "other.csv", "id,text", "10,another file")
    answer = start(cli, file, other)
    begun = 1 if line == 5 else 0
    assert counted(answer) == (3 + begun, 2 + begun, 1)
    assert {"1": 'one, "1"', "10": "another file"}.items() <= notes(books).items()
    assert ("5" in notes(books), "6" in notes(books), "7" in notes(books)) == (bool(begun), False, False)
    ((name, record, reason),) = books.quarantine()
    assert (name, record) == ("notes.csv", 2 + begun)
    assert reason.startswith(f"malformed: line {line} has a quote that RFC 4180 does not allow")
    # Mended, the rest of it starts.
    mended = [each.replace('"', "") for each in lines if each[:1].isdecimal()]
    assert start(cli, write(file, "id,text", '1,"one, ""1"""', *mended)).json["started"] == len(mended) - begun


def test_of_the_rest_of_a_file_the_first_64_kib_are_kept(cli: Cli, books: Books, tmp_path: Path) -> None:
    rest = ['2,"never closed', *(f"{number},{'x' * 90}" for number in range(3, 3000))]
    answer = start(cli, write(tmp_path / "notes.csv", "id,text", "1,fine", *rest))
    assert counted(answer) == (2, 1, 1)
    kept = books.text_of("notes.csv", 2)
    assert ("\n".join(rest).startswith(kept), len(kept)) == (True, KEPT_BYTES)
    says = f"{len(chr(10).join(rest)) + 1} bytes, was not started, and its first {KEPT_BYTES} bytes are kept here."
    assert says in books.quarantine()[0][2]


@pytest.mark.usefixtures("many_tasks")
def test_files_with_line_breaks_are_numbered_beside_files_without(cli: Cli, books: Books, tmp_path: Path) -> None:
    """Larger than what one task reads of a file."""
    pad = "x" * 200
    whole = [f'{number},"{number}{pad}"' for number in range(500)]
    broken = [f'{number},"{number}\n\n{pad}"' for number in range(500, 1000)]
    whole[300] = broken[300] = "short"
    answer = start(cli, write(tmp_path / "a.csv", "id,text", *whole), write(tmp_path / "b.csv", '"id","text"', *broken))
    assert counted(answer) == (1000, 998, 2)
    assert [(name, record) for name, record, _ in books.quarantine()] == [("a.csv", 301), ("b.csv", 301)]
    found = notes(books)
    assert all(text.startswith(number) for number, text in found.items())
    assert {len(text) for text in found.values()} <= {len(pad) + width for width in range(1, 6)}


PACKED: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress}


@pytest.mark.parametrize(("suffix", "quoted"), [*product(PACKED, [False, True])])
def test_compressed_files_are_cut_like_others(
    cli: Cli, books: Books, tmp_path: Path, suffix: str, quoted: bool
) -> None:
    text = 'id,text\n1,"two\nlines"\n2,"open\n' if quoted else "id,text\n1,one\n2,two\n"
    file = tmp_path / f"notes.csv.{suffix}"
    file.write_bytes(PACKED[suffix](text.encode()))
    assert counted(start(cli, file)) == ((2, 1, 1) if quoted else (2, 2, 0))
    assert notes(books) == ({"1": "two\nlines"} if quoted else {"1": "one", "2": "two"})


@pytest.mark.parametrize("separator", [";", "::", "|", "\t", "\\t", "."])
def test_any_separator_may_stand_between_quoted_cells(cli: Cli, books: Books, tmp_path: Path, separator: str) -> None:
    mark = "\t" if separator == "\\t" else separator
    rows = ["id", "text"], ['"1"', f'"a{mark}""b""\nc"'], ["2", '""']
    file = write(tmp_path / "notes.csv", *(mark.join(cells) for cells in rows))
    assert counted(start(cli, file, separator=separator)) == (2, 2, 0)
    assert notes(books) == {"1": f'a{mark}"b"\nc', "2": ""}


def test_the_first_line_may_have_quotes_and_line_breaks_too(cli: Cli, books: Books, tmp_path: Path) -> None:
    assert counted(start(cli, write(tmp_path / "a.csv", '"id","text","why\nso"', "1,one,two", "2,x,y"))) == (2, 2, 0)
    assert notes(books) == {"1": "one", "2": "x"}


def test_an_address_with_a_scheme_is_read_the_same(cli: Cli, books: Books, tmp_path: Path) -> None:
    """As files in other file systems are, of which only Spark sees anything."""
    write(tmp_path / "a.csv", "id,text", "1,one", '2,"a', 'b"')
    write(tmp_path / "b.csv", "id,text", "3,three")
    assert counted(start(cli, f"file://{tmp_path}/*.csv")) == (3, 3, 0)
    assert notes(books) == {"1": "one", "2": "a\nb", "3": "three"}


def test_a_folder_by_days_gives_its_rows_their_day(cli: Cli, books: Books, tmp_path: Path) -> None:
    for day, text in (("01", "one"), ("02", '"two\nlines"')):
        (tmp_path / "notes" / f"text={day}").mkdir(parents=True)
        write(tmp_path / "notes" / f"text={day}" / "a.csv", "id,other", f"{day},{text}")
    assert counted(start(cli, tmp_path / "notes", "--format", "csv")) == (2, 2, 0)
    assert notes(books) == {"01": "01", "02": "02"}


@pytest.mark.parametrize("record", ['5,"pay 100', '5,pay "100"', '5,"a\nb', '5,"a\nb"c'])
def test_a_record_whose_quotes_changed_after_the_file_was_counted_starts_nothing(record: str) -> None:
    """As the last line of a file that somebody still writes."""
    numbering = Numbering({("a.csv", 0): 0}, {})
    checker = Checker(ReadSettings("csv", ["id"], "n", ",", ["id", "text"], numbering), Note)
    checked = checker.check("a.csv", 0, 1, record.encode(), None)
    assert checked is not None
    assert (checked.body, checked.row) == (None, record)
    assert "the file was changed while it was read" in str(checked.reason)
