"""The words in which a crash says which effect it lost or doubled, and why."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from stagepost.testing.crash import Crash
from stagepost.transaction.steps import Step

EXPECTED = {"sale": [(1, "lamp"), (2, "sofa")], "mail": ["lamp"]}
UUIDS = [UUID(int=number) for number in (1, 2)]


def said(found: Any, expected: Any = EXPECTED, step: Step = Step.HANDLED, failures: tuple[str, ...] = ()) -> str:
    return str(Crash(step, "orders.place", 3, found, expected, failures))


@pytest.mark.parametrize(
    ("found", "step", "failures", "wanted"),
    [
        (EXPECTED, Step.HANDLED, (), "exactly once"),
        (
            {**EXPECTED, "mail": ["lamp", "lamp"]},
            Step.HANDLED,
            (),
            "doubled mail: 'lamp' (found twice, expected once). Likely cause: an effect outside the stage's",
        ),
        (
            {**EXPECTED, "mail": ["lamp", "lamp", "lamp"]},
            Step.COMMITTED,
            (),
            "doubled mail: 'lamp' (found 3 times, expected once). Likely cause: the work was committed, and the",
        ),
        (
            {**EXPECTED, "mail": []},
            Step.COMMITTED,
            (),
            "lost mail: 'lamp' (found not at all, expected once). Likely cause: an effect after the commit",
        ),
        (
            {**EXPECTED, "mail": []},
            Step.HANDLED,
            (),
            "lost mail: 'lamp' (found not at all, expected once). Likely cause: the handler remembers outside",
        ),
        (
            {**EXPECTED, "sale": [(1, "lamp"), (2, "sofa"), (3, "sofa")]},
            Step.HANDLED,
            (),
            "doubled sale: (2, 'sofa') (found again as sale: (3, 'sofa')). Likely cause: a server-made id:",
        ),
        (
            {**EXPECTED, "sale": [(1, "lamp"), (7, "sofa")]},
            Step.HANDLED,
            (),
            "changed sale: (2, 'sofa') to sale: (7, 'sofa'). Likely cause: a server-made id. The effect exists once",
        ),
        (
            {**EXPECTED, "sale": [(1, "lamp")]},
            Step.HANDLED,
            ("UniqueViolation: duplicate key value violates unique constraint",),
            "failed: UniqueViolation: duplicate key value violates unique constraint. Likely cause: an insert outside",
        ),
        (
            {**EXPECTED, "sale": [(1, "lamp")]},
            Step.HANDLED,
            ("ValueError: sold out",),
            "An attempt after the crash failed: ValueError: sold out. Likely cause: a check of the number of affected",
        ),
        (
            {**EXPECTED, "mail": ["Lamp!"]},
            Step.HANDLED,
            (),
            "added mail: 'Lamp!' (not expected). Likely cause: an effect that depends on the time",
        ),
    ],
)
def test_the_verdict_names_the_effect_and_the_likely_cause(
    found: Any, step: Step, failures: tuple[str, ...], wanted: str
) -> None:
    text = said(found, step=step, failures=failures)
    assert wanted in text
    assert text.startswith(f"crash at {step} of orders.place (passing 3): ")


def test_uuids_are_ids_and_names_are_not() -> None:
    assert "server-made id:" in said([(UUIDS[0], "a"), (UUIDS[1], "a")], [(UUIDS[0], "a")])
    assert "server-made id:" in said([(str(UUIDS[0]), "a"), (str(UUIDS[1]), "a")], [(str(UUIDS[0]), "a")])
    assert "not expected" in said([("lamp", "a"), ("sofa", "a")], [("lamp", "a")])


def test_effects_in_a_tuple_of_lists_and_in_sets_are_compared_one_by_one() -> None:
    text = said(([(1, "a")], {"x"}, []), ([(1, "a"), (1, "a")], {"x"}, ["gone"]))
    assert "lost (1, 'a') (found once, expected twice), lost 'gone' (found not at all, expected once)." in text


def test_of_many_effects_the_first_ones_are_named_and_the_others_counted() -> None:
    text = said([], list("abcdefg"))
    assert "lost 'e' (found not at all, expected once) and 2 more." in text
    assert "'f'" not in text
