"""Each of the ten questions of ``questions.md`` is answered on a page whose title and headings promise the answer."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.house.ids import ROOT
from tests.house.language import blocks_of_markdown, words

# An answer in fewer words than these leaves a part of its question open.
WORDS_MIN = 120


class Answer(NamedTuple):
    """``begins`` is how the question begins; ``title`` is the page's, and ``headings`` are of its sections, in order.

    ``says`` are texts that the answer holds; they keep a later edit from losing a part of it.
    """

    begins: str
    page: str
    title: str
    headings: list[str]
    says: list[str]


HANDLERS = (
    "Starting flows and writing handlers: ids, your own transaction, replies, requests, delays, retries, publishing"
)
OPERATING = (
    "Deploying and operating: workers, changes and upgrades, monitoring, dead letters, paused stages, growth of the "
    "history"
)

ANSWERS = {
    1: Answer(
        "How do I set the retry policy of one endpoint or stage",
        "docs/handlers.md",
        HANDLERS,
        ["Redelivery: the retry policy of an endpoint or a stage"],
        ["seven attempts", "with_hopeless", "0.25, 0.5, 1, 2, 4 and 8 seconds"],
    ),
    2: Answer(
        "My FastAPI order route already has an open PostgreSQL transaction",
        "docs/handlers.md",
        HANDLERS,
        ["In your own transaction: `app.initiate(connection=…)`"],
        ["FastAPI", "SQLAlchemy", "psycopg.Connection", "The commit is yours", "is_new", "IdConflict"],
    ),
    3: Answer(
        "A stage sends several requests with `ctx.request`",
        "docs/handlers.md",
        HANDLERS,
        ["Several requests: continuing when all replies are in"],
        ["Stagepost has no call that joins them", "waiting - 1", "ends as a dead letter", "ctx.fail_with"],
    ),
    4: Answer(
        "How do I make something happen later",
        "docs/handlers.md",
        HANDLERS,
        ["Delays and deadlines"],
        ["delay=", "no parameter for a point in time", "neither a delay nor a deadline"],
    ),
    5: Answer(
        "I add a field to the `Order` dataclass",
        "docs/operating.md",
        OPERATING,
        ["Changing message types and stages while messages wait"],
        ["add a field with a default", "rename a field", "insert a stage in the middle", "side by side", "IdConflict"],
    ),
    6: Answer(
        "What happens when `app.request(...).result(timeout=5)` times out",
        "docs/handlers.md",
        HANDLERS,
        ["Waiting for the reply", "Fetching the outcome later, or from another process"],
        ["ReplyTimeout", "the flow goes on", "AlreadyStarted", "Stagepost keeps no replies"],
    ),
    7: Answer(
        "How do I run workers in production under systemd or Kubernetes",
        "docs/operating.md",
        OPERATING,
        [
            "Settings of each environment",
            "Running workers",
            "Stopping: SIGTERM in the middle of a handler",
            "systemd",
            "Kubernetes",
        ],
        ["STAGEPOST_DATABASE", "--processes", "--grace", "KillMode=mixed", "terminationGracePeriodSeconds"],
    ),
    8: Answer(
        "How do I monitor it",
        "docs/operating.md",
        OPERATING,
        ["Monitoring: figures, alerts and thresholds"],
        ["no metrics endpoint yet", "status --json", "oldest_at", "--stuck", "exit code 1", "page somebody"],
    ),
    9: Answer(
        "The journal and the records of finished flows grow",
        "docs/operating.md",
        OPERATING,
        ["History: growth, purging and archiving"],
        ["purged by the workers", "App(retention=…)", "starts the flow again", "reports no loss"],
    ),
    10: Answer(
        "How do I upgrade Stagepost to a new version on a live database",
        "docs/operating.md",
        OPERATING,
        ["Upgrading Stagepost on a live database", "A consistent backup", "Going back"],
        ["Stop every process", "a newer schema", "pg_dump", ".backup", "Migrations go forward only"],
    ),
}


def questions() -> dict[int, str]:
    text = (ROOT / "tests/house/questions.md").read_text(encoding="utf-8")
    return {int(number): asked for number, asked in re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE)}


def title(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def sections(page: str) -> dict[str, str]:
    """Return the text of each section by its heading, up to the next heading of any level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = dict[str, str]()
    heading, is_code = "", False
    for line in text.splitlines(keepends=True):
        is_code ^= line.startswith("```")
        if line.startswith("#") and not is_code:
            heading = line.lstrip("#").strip()
        found[heading] = found.get(heading, "") + line
    return found


def test_every_question_has_an_answer() -> None:
    asked = questions()
    assert sorted(asked) == sorted(ANSWERS) == list(range(1, 11))
    for number, answer in ANSWERS.items():
        assert asked[number].startswith(answer.begins)


@pytest.mark.parametrize("number", sorted(ANSWERS))
def test_a_question_is_answered_on_a_page_that_promises_it(number: int) -> None:
    answer = ANSWERS[number]
    assert title(answer.page) == answer.title
    found = sections(answer.page)
    places = [list(found).index(heading) for heading in answer.headings]
    assert places == sorted(places)
    text = "\n".join(found[heading] for heading in answer.headings)
    assert sum(words(block.text) for block in blocks_of_markdown(text)) >= WORDS_MIN
    assert [each for each in answer.says if each not in " ".join(text.split())] == []


def test_every_page_of_an_answer_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {answer.page for answer in ANSWERS.values()} <= set(re.findall(r"\]\(([^)#]+)", readme))
