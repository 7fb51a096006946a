"""The stored form of a run's result: the envelopes keep their bytes, and large ones are compressed."""

from __future__ import annotations

import pytest

from stagepost.flow.produced import COMPRESSED_FROM, Produced, decode_produced, encode_produced
from stagepost.testing.contract.givens import NOW, an_outgoing


@pytest.mark.parametrize("size", [0, 10, COMPRESSED_FROM // 2, COMPRESSED_FROM, 3_000_000])
def test_a_result_comes_back_as_it_was_and_a_large_one_takes_less(size: int) -> None:
    body = b'{"text":"' + b"order " * (size // 6) + b'"}'
    produced = Produced(NOW, "worker@here:1", 2, 1.5, "detail", [an_outgoing("m1", body=body), an_outgoing("m2")])
    data = encode_produced(produced)
    assert decode_produced(data) == produced
    assert (len(data) < size / 10) is (size >= COMPRESSED_FROM)
