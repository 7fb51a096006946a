"""Message ids: the same cause always gives the same id, and ids stay ordered by time where they carry one."""

from __future__ import annotations

import uuid
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost import InvalidId
from stagepost.flow import ids
from stagepost.testing import ManualClock

printable = st.text("abcXYZ019:/-_#@ÄöüßéЖ注文🚚", min_size=1, max_size=40)
addresses = st.from_regex(r"[a-z]{1,8}(\.[a-z]{1,8}){0,2}", fullmatch=True)
ordinals = st.integers(0, 10**6)


@given(printable, addresses, ordinals)
def test_an_id_from_a_key_is_the_uuid5_of_flow_target_and_ordinal(flow_id: str, target: str, ordinal: int) -> None:
    """The very same that Spark's SQL computes, and any other language can."""
    name = f"{flow_id}\x1f{target}\x1f{ordinal}"
    assert ids.from_key(flow_id, target, ordinal) == str(uuid.uuid5(ids.NAMESPACE, name))


@given(st.sets(st.tuples(printable, addresses, ordinals), min_size=2, max_size=20))
def test_different_keys_have_different_ids(keys: set[tuple[str, str, int]]) -> None:
    assert len({ids.from_key(*key) for key in keys}) == len(keys)


@given(printable, addresses, ordinals, st.sampled_from(["send", "request", "reply", "next"]), addresses, ordinals)
def test_a_derived_id_under_a_callers_key_is_a_plain_hash(
    cause: str, stage: str, index: int, kind: str, target: str, ordinal: int
) -> None:
    name = "\x1f".join([cause, stage, str(index), kind, target, str(ordinal)])
    if len(cause) != 36:
        assert ids.derived(cause, stage, index, kind, target, ordinal) == str(uuid.uuid5(ids.NAMESPACE, name))


@pytest.mark.parametrize("version", [7, 8])
@given(st.uuids(version=4), addresses, ordinals)
def test_a_derived_id_under_one_with_a_time_is_version_8_and_begins_with_that_time(
    version: int, seed: uuid.UUID, target: str, ordinal: int
) -> None:
    text = str(seed)
    cause = f"{text[:14]}{version}{text[15:]}"
    child = ids.derived(cause, "pay", 0, "send", target, ordinal)
    parsed = uuid.UUID(child)
    assert child == str(parsed)
    assert (parsed.version, parsed.variant) == (8, uuid.RFC_4122)
    assert child[:13] == cause[:13]
    grandchild = ids.derived(child, "pay", 0, "send", target, ordinal)
    assert grandchild[:13] == cause[:13]
    assert grandchild != child


@given(st.uuids(version=4) | st.uuids(version=5))
def test_a_derived_id_under_a_uuid_without_a_time_is_a_plain_hash(cause: uuid.UUID) -> None:
    assert uuid.UUID(ids.derived(str(cause), "pay", 0, "send", "ship", 0)).version == 5


@pytest.mark.parametrize("cause", ["customer-2024-7abc-1234-abcdefabcdef", "ŝĉĝĥĵŭŝĉ-ŝĉĝĥ-8ŝĉ-and-what-follows!!"])
def test_a_derived_id_is_a_uuid_whatever_the_caller_chose_as_message_id(cause: str) -> None:
    assert len(cause) == 36
    child = ids.derived(cause, "pay", 0, "send", "ship", 0)
    assert str(uuid.UUID(child)) == child


PARTS = ("cause", "pay", 0, "send", "ship", 0)


@pytest.mark.parametrize(
    "other",
    [
        ("another", "pay", 0, "send", "ship", 0),
        ("cause", "pay.settle", 0, "send", "ship", 0),
        ("cause", "pay", 1, "send", "ship", 0),
        ("cause", "pay", 0, "request", "ship", 0),
        ("cause", "pay", 0, "send", "bill", 0),
        ("cause", "pay", 0, "send", "ship", 1),
    ],
)
def test_every_part_of_a_sends_place_tells_its_id_apart(other: tuple[str, str, int, str, str, int]) -> None:
    assert ids.derived(*other) != ids.derived(*PARTS)
    assert ids.derived(*PARTS) == ids.derived(*PARTS)


def test_an_id_is_what_it_was_when_the_first_version_was_released() -> None:
    """A repeat may come years later, from another version: these may never change."""
    place = ("payments.pay", 0, "request", "ledger.reserve", 0)
    assert ids.from_key("order:1", "payments.pay", 0) == "206d593f-03f7-59aa-8b99-9141c5a37639"
    assert ids.derived("cd5a88e0-5d62-5a3d-b61b-6a5d63c0b9f5", *place) == "ad34a197-b6f6-51cc-9b83-90a29736cfec"
    assert ids.derived("018bcfe5-687b-7000-8000-000000000000", *place) == "018bcfe5-687b-832a-a695-a25cba4cc285"


def test_a_minted_id_is_a_version_7_uuid_of_its_moment() -> None:
    clock = ManualClock(1_700_000_000_123_456)
    source = ids.RandomIds(clock, Random(0))
    minted = [source.mint() for _ in range(1_000)]
    assert len(set(minted)) == len(minted)
    for each in minted:
        parsed = uuid.UUID(each)
        assert (str(parsed), parsed.version, parsed.variant) == (each, 7, uuid.RFC_4122)
        assert parsed.int >> 80 == 1_700_000_000_123


def test_minted_ids_sort_by_time_and_repeat_with_their_seed() -> None:
    clock = ManualClock()
    source = ids.RandomIds(clock, Random(3))
    minted = []
    for _ in range(100):
        minted.append(source.mint())
        clock.advance(0.001)
    assert minted == sorted(minted)
    assert ids.RandomIds(ManualClock(), Random(3)).mint() == minted[0]


# What may be an id


@given(printable)
def test_what_can_be_printed_and_is_not_too_long_may_be_an_id(text: str) -> None:
    assert ids.check_id("flow_id", text) == text


def test_an_id_may_be_200_characters_long_and_have_blanks_inside() -> None:
    assert ids.check_id("flow_id", "x" * 200) == "x" * 200
    assert ids.check_id("flow_id", "order 1") == "order 1"


REFUSED = {
    "": "must not be empty",
    " ": "must not be empty or begin or end with blanks",
    " a": "begin or end with blanks",
    "a\n": "begin or end with blanks",
    "a\nb": "must be printable",
    "a\x1fb": "must be printable",
    "a\x00b": "must be printable",
    "a\udce9": "must be printable",
    "a\u200bb": "must be printable",
    "x" * 201: "is 201 characters long, at most 200",
}


@pytest.mark.parametrize("text", REFUSED, ids=[repr(each)[:20] for each in REFUSED])
def test_what_could_not_be_stored_or_searched_is_no_id(text: str) -> None:
    with pytest.raises(InvalidId, match="flow_id") as caught:
        ids.check_id("flow_id", text)
    assert REFUSED[text] in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("value", [None, 17, b"order", uuid.UUID(int=0)])
def test_what_is_no_text_is_no_id(value: object) -> None:
    with pytest.raises(InvalidId, match="message_id must be a str, not"):
        ids.check_id("message_id", value)  # type: ignore[arg-type]
