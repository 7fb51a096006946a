"""Foreign texts within ours."""

from __future__ import annotations

import pytest

from stagepost.flow.texts import as_sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("it is full", "it is full."),
        ("Free some disk space.", "Free some disk space."),
        ("Is the server running?", "Is the server running?"),
        ("no!", "no!"),
        (OSError(28, "No space left on device", "a.db"), "[Errno 28] No space left on device: 'a.db'."),
        ("it ends with a line break.\n", "it ends with a line break."),
    ],
)
def test_a_text_before_another_sentence_ends_once(text: object, expected: str) -> None:
    assert as_sentence(text) == expected
