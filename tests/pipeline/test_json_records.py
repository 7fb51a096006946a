"""JSON that is not one object a line is cut into records: what Python's own ``json`` writes comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.pipeline import json_records
from stagepost.pipeline.csv_records import KEPT_BYTES
from stagepost.pipeline.json_records import cut, is_of_several_lines

TEXTS = st.text(alphabet='ab {}[],:"\\\n\u00e9', max_size=6)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=5)


def records(text: str) -> list[Any]:
    found = list(cut(text.encode().split(b"\n")))
    assert [reason for _, reason in found] == [None] * len(found)
    return [json.loads(record) for record, _ in found]


@given(objects=OBJECTS, indent=st.sampled_from([None, 0, 2]), is_ascii=st.booleans())
def test_an_array_that_python_writes_is_read_back(
    objects: list[dict[str, Any]], indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps(objects, indent=indent, ensure_ascii=is_ascii)
    assert records(text) == objects
    assert is_of_several_lines(text.encode().split(b"\n")[0])


@given(objects=OBJECTS, indent=st.sampled_from([None, 0, 2]))
def test_objects_that_follow_each_other_are_read_back(objects: list[dict[str, Any]], indent: int | None) -> None:
    assert records("\n".join(json.dumps(each, indent=indent) for each in objects)) == objects


@pytest.mark.parametrize(
    ("head", "is_cut"),
    [
        (b'{ "key": "a",', True),
        (b'\xef\xbb\xbf{"tags": [\r', True),
        (b'{"of": {', True),
        (b'{"key": "a"}', False),
        (b'{"key": "a"},', False),
        (b'{"key": "a", "more":', False),
        (b'{"key": "a,', False),
    ],
)
def test_an_object_whose_first_line_holds_keys_may_have_several_lines(head: bytes, is_cut: bool) -> None:
    """A line that was cut off is one wrong record, and not a reason to set aside the rest of the file."""
    assert is_of_several_lines(head) == is_cut


def test_what_is_no_object_is_a_record_of_its_own() -> None:
    found = list(cut([b'\xef\xbb\xbf [1, "a, b", {"a": [1, {}]}, nul,', b"", b", ]", b'{"b": 2} [3]']))
    assert [text for text, _ in found] == [b"1", b'"a, b"', b'{"a": [1, {}]}', b"nul", b"", b"", b'{"b": 2}', b"3"]
    assert {reason for _, reason in found} == {None}


@pytest.mark.parametrize(
    ("lines", "whole", "reason"),
    [
        ([b'[{"a": 1},', b'{"b": 2]', b'{"c": 3}]'], 1, "the bracket ] in line 2 closes none that is open"),
        ([b'[{"a": 1}, {"b": "2}', b'{"c": 3}]'], 1, "the text that begins in line 1 does not end there"),
        ([b'[{"a": 1}, {"b": 2}'], 1, "the file ends before its last bracket is closed"),
        ([b'[{"a": 1}]', b"more", b"[1]"], 1, "line 2 has text outside of all records"),
        ([b'{"a": 1}', b"}"], 1, "the sign } in line 2 is outside of all records"),
        ([b'{"a": 1}, {"b": 2}'], 1, "the sign , in line 1 is outside of all records"),
    ],
)
def test_from_a_wrong_bracket_on_the_file_is_one_record(lines: list[bytes], whole: int, reason: str) -> None:
    found = list(cut(lines))
    assert [each for _, each in found[:-1]] == [None] * whole
    last, why = found[-1]
    assert (why or "").startswith(reason)
    assert len(last) <= KEPT_BYTES


def test_a_record_that_is_too_large_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_records, "RECORD_BYTES_MAX", 100)
    found = list(cut([b"[1, {", *[b'"a": 1,'] * 1000, b"}, 2]"]))
    assert [text for text, reason in found if reason is None] == [b"1", b"2"]
    assert [reason for _, reason in found if reason] == ["the record has 8004 bytes, and at most 100 fit"]
