"""Split CSV as RFC 4180 defines it: lines into records, and records into cells.

A record ends at a line end outside quotes. A quote may only begin a cell, end it, or be doubled within a quoted cell.
After a quote that breaks this rule, the parser cannot tell data from delimiters. The rest of the file is then one
record with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# The part of a record's text that is kept if the record has a reason.
KEPT_BYTES = 64 * 1024
# Bounds what a task holds in memory while it looks for the end of a quoted cell.
RECORD_BYTES_MAX = 64 * 1024 * 1024
BLANK = b" \r"
QUOTE = b'"'


class Quotes:
    """Follow the quotes of one file, line by line.

    ``is_open`` says whether a quote is open at the end of the last line. ``line`` is the line of the last quote that
    opened a cell, or of the quote that is not allowed.
    """

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self.is_open = False
        self.line = 0

    def follow(self, number: int, line: bytes) -> bool:
        """Read one line. Return False if it has a quote that RFC 4180 does not allow."""
        parts = line.rstrip(b"\r").split(QUOTE)
        last = len(parts) - 1
        for place, part in enumerate(parts):
            is_quoted = self.is_open ^ (place % 2 == 1)
            if is_quoted or (not part and place > 0):
                # An empty part between two quotes is the second half of a doubled quote.
                continue
            if place > 0 and not part.startswith(self._separator):
                return False
            if place < last:
                self.line = number
                if part and not part.endswith(self._separator):
                    return False
        self.is_open ^= last % 2 == 1
        return True


def cut(lines: Iterable[bytes], separator: bytes) -> Iterator[tuple[bytes, str | None]]:
    """Yield the records of one file without their line ends, each with the reason why it cannot be accepted, or None.

    ``lines`` are all lines of the file, without their line feeds. Blank lines are skipped.
    """
    quotes = Quotes(separator)
    remaining = iter(lines)
    kept: list[bytes] = []
    size = 0
    for number, line in enumerate(remaining, 1):
        if not size and QUOTE not in line:
            if line.strip(BLANK):
                yield line.rstrip(b"\r"), None
            continue
        size += len(line) + 1
        if size <= RECORD_BYTES_MAX or not kept:
            kept.append(line)
        if not quotes.follow(number, line):
            for following in remaining:
                if size < KEPT_BYTES:
                    kept.append(following)
                size += len(following) + 1
            yield _rest(kept, size, f"line {quotes.line} has a quote that RFC 4180 does not allow")
            return
        if not quotes.is_open:
            text = b"\n".join(kept)
            if size <= RECORD_BYTES_MAX:
                yield text.rstrip(b"\r"), None
            else:
                yield text[:KEPT_BYTES], f"the record has {size} bytes, and at most {RECORD_BYTES_MAX} fit"
            kept, size = [], 0
    if size:
        yield _rest(kept, size, f"the quote that opens in line {quotes.line} is never closed")


def _rest(kept: list[bytes], size: int, reason: str) -> tuple[bytes, str]:
    return b"\n".join(kept)[:KEPT_BYTES], f"{reason}. {not_started(size)} Correct the quote and start the file again."


def not_started(size: int) -> str:
    """Return the sentence about a rest of a file, of that many bytes, in which records are indistinguishable."""
    kept = "it is kept" if size <= KEPT_BYTES else f"its first {KEPT_BYTES} bytes are kept"
    return f"The rest of the file, {size} bytes, was not started, and {kept} here."


def is_record(content: bytes, separator: bytes) -> bool:
    """Return whether the quotes follow RFC 4180, and all are closed at the end."""
    quotes = Quotes(separator)
    return all(quotes.follow(1, line) for line in content.split(b"\n")) and not quotes.is_open


def cells(record: str, separator: str) -> list[str]:
    """Return the cells of a record. ``is_record`` must be true for it."""
    if '"' not in record:
        return record.split(separator)
    found: list[str] = []
    cell = ""
    parts = record.split('"')
    for place, part in enumerate(parts):
        if place % 2:
            cell += part
        elif not part and 0 < place < len(parts) - 1:
            cell += '"'
        else:
            first, *others = part.split(separator)
            cell += first
            for other in others:
                found.append(cell)
                cell = other
    return [*found, cell]
