"""The names of a job's steps on Spark's own pages. Spark is not needed."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from stagepost.pipeline.session import DESCRIPTION, job_description


class Context:
    """The context of a session, whose Java may die."""

    def __init__(self, description: str | None) -> None:
        self.sparkContext = self
        self.description = description
        self.is_dead = False

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's names, here and below
        assert name == DESCRIPTION
        return self.description

    def setJobDescription(self, text: str | None) -> None:  # noqa: N802
        if self.is_dead:
            raise Py4JNetworkError("Answer from Java side is empty")
        self.description = text


@pytest.mark.parametrize("own", [None, "a user's own"])
def test_a_step_is_named_and_then_has_the_name_around_it_again(own: str | None) -> None:
    session: Any = Context(own)
    with job_description(session, "counting rows"):
        with job_description(session, "starting flows"):
            assert session.description == "starting flows"
        assert session.description == "counting rows"
    assert session.description == own


def die(session: Context) -> None:
    session.is_dead = True
    raise RuntimeError("a task failed")


def test_the_death_of_java_leaves_the_error_of_the_step() -> None:
    session: Any = Context(None)
    with pytest.raises(RuntimeError, match="a task failed"), job_description(session, "starting flows"):
        die(session)
