"""Cut JSON that is not one object a line into records: arrays of objects, and objects of several lines.

A record is an element of a top-level array, or a top-level object. Only brackets, commas and texts are read here, and
each record is decoded later, so a wrong value concerns its record alone. After a bracket that does not match, or a text
that does not end, records cannot be told apart. The rest of the file is then one record with a reason.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from stagepost.pipeline.csv_records import KEPT_BYTES, RECORD_BYTES_MAX, not_started

# A text never holds a line feed. A quote alone is a text that does not end in its line.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},"]')
_CLOSING = {b"{": b"}", b"[": b"]"}


def is_of_several_lines(head: bytes) -> bool:
    """Return whether a file with this first line has to be cut. Otherwise each of its lines is a record.

    A line that ends behind a comma or an opening bracket within its object is no whole record. An object that ends
    elsewhere too early is a wrong line of its own.
    """
    start = head.removeprefix(codecs.BOM_UTF8).strip()
    if start.startswith(b"["):
        return True
    return start.startswith(b"{") and start.endswith((b",", b"{", b"[")) and _is_open(start)


def _is_open(line: bytes) -> bool:
    cutter = _Cutter()
    try:
        for _ in cutter.read(line):
            pass
    except _Unreadable:
        return False
    return cutter.is_within


class _Unreadable(Exception):
    """Records cannot be told apart from here on."""


class _Cutter:
    """Follow the brackets of one file, line by line. Before ``_begin``, the present line is read."""

    def __init__(self) -> None:
        self.line = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._begin = 0
        self._closing: list[bytes] = []
        self._is_array = False
        self._follows_comma = False

    def read(self, line: bytes) -> Iterator[tuple[bytes, str | None]]:
        """Read one line, and yield the records that end in it."""
        self.line += 1
        self._begin = 0
        for token in _TOKEN.finditer(line):
            sign = token[0]
            if sign == b'"':
                raise _Unreadable(f"the text that begins in line {self.line} does not end there")
            if sign in _CLOSING:
                self._open(sign, line, token.start(), token.end())
            elif self._closing:
                if sign != b"," and sign in b"]}" and self._closes_record(sign):
                    yield self._record(line, token.end(), token.end())
            elif not self._is_array or sign not in (b",", b"]"):
                if len(sign) == 1:
                    raise _Unreadable(f"the sign {sign.decode()} in line {self.line} is outside of all records")
            else:
                if sign == b"," or self._follows_comma or self._has_text(line[self._begin : token.start()]):
                    yield self._record(line, token.start(), token.end())
                self._begin = token.end()
                self._follows_comma = self._is_array = sign == b","
        rest = line[self._begin :]
        if self.is_within:
            self._add(rest + b"\n")
        else:
            self._check_blank(rest)

    def _open(self, sign: bytes, line: bytes, start: int, end: int) -> None:
        if not self._closing and not self._is_array:
            self._check_blank(line[self._begin : start])
            self._parts, self._size, self._begin = [], 0, start
            if sign == b"[":
                self._is_array, self._begin = True, end
                return
        self._closing.append(_CLOSING[sign])

    def _closes_record(self, sign: bytes) -> bool:
        if self._closing.pop() != sign:
            raise _Unreadable(f"the bracket {sign.decode()} in line {self.line} closes none that is open")
        return not self._closing and not self._is_array

    def end(self) -> None:
        """Raise ``_Unreadable`` if the file ends within a record or an array."""
        if self.is_within:
            raise _Unreadable("the file ends before its last bracket is closed")

    @property
    def is_within(self) -> bool:
        """Say whether the last line has ended within a record or an array."""
        return bool(self._closing) or self._is_array

    @property
    def kept(self) -> bytes:
        """The beginning of the present record."""
        return b"".join(self._parts)[:KEPT_BYTES]

    def _add(self, text: bytes) -> None:
        self._size += len(text)
        if self._size <= RECORD_BYTES_MAX or not self._parts:
            self._parts.append(text)

    def _has_text(self, text: bytes) -> bool:
        return bool(text.strip()) or any(part.strip() for part in self._parts)

    def _record(self, line: bytes, end: int, next_begin: int) -> tuple[bytes, str | None]:
        """End the present record at a place of the line. The next one begins at another."""
        self._add(line[self._begin : end])
        self._begin = next_begin
        text, size = b"".join(self._parts).strip(), self._size
        self._parts, self._size = [], 0
        if size > RECORD_BYTES_MAX:
            return text[:KEPT_BYTES], f"the record has {size} bytes, and at most {RECORD_BYTES_MAX} fit"
        return text, None

    def _check_blank(self, text: bytes) -> None:
        if text.strip():
            raise _Unreadable(f"line {self.line} has text outside of all records")


def cut(lines: Iterable[bytes]) -> Iterator[tuple[bytes, str | None]]:
    """Yield the records of one file, each with the reason why it cannot be accepted, or None.

    ``lines`` are all lines of the file, without their line feeds.
    """
    cutter = _Cutter()
    remaining = iter(lines)
    for line in remaining:
        text = line.removeprefix(codecs.BOM_UTF8) if not cutter.line else line
        try:
            yield from cutter.read(text)
        except _Unreadable as error:
            size = len(cutter.kept) + len(text) + sum(len(following) + 1 for following in remaining)
            yield (cutter.kept + text)[:KEPT_BYTES], _rest(error, size)
            return
    try:
        cutter.end()
    except _Unreadable as error:
        yield cutter.kept, _rest(error, len(cutter.kept))


def _rest(error: _Unreadable, size: int) -> str:
    return f"{error}. {not_started(size)} Correct the file and start it again."
