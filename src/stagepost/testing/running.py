"""Run an app in a test, on a database of its own: ``with testing.run(app, database) as shop: shop.drain()``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from stagepost.app.app import App, engine_of, moved
from stagepost.app.loading import load_app
from stagepost.flow.rows import Rows
from stagepost.ports.dead_letters import DeadLetter, DeathReason
from stagepost.runtime.settings import Place
from stagepost.testing.clock import ManualClock
from stagepost.testing.harness import Harness
from stagepost.transaction.outcome import Outcome
from stagepost.transaction.queue_commit import committing

MEMORY = "memory:"
# An app, a function that makes one, or the name of either: ``shop:app`` or ``shop:make_app()``.
AnApp = App | Callable[[], App] | str


class RunningApp(Harness):
    """An app that runs in this thread. Its ``drain`` fails if a dead letter was not expected.

    ``app``       the app, to start its flows
    ``clock``     the virtual clock, which ``drain`` moves on to delayed messages
    """

    clock: ManualClock

    def __init__(self, app: App, seed: int) -> None:
        super().__init__(app, seed=seed)
        self.app = app
        self._expected: Counter[tuple[str, DeathReason | None]] = Counter()
        self._reported: set[str] = set()

    def sql(self, statement: str, /, **parameters: Any) -> Rows:
        """Run one statement on the app's database and commit it, with ``:name`` for each parameter, as ``ctx.sql``."""
        return run_statement(self.app, statement, **parameters)

    def expect_dead_letters(self, stage: str, count: int = 1, *, reason: DeathReason | None = None) -> None:
        """Expect further dead letters of a stage: so many, and for ``reason`` if it is given.

        If they are missing at the end of the test's block, the block raises ``AssertionError``.
        """
        self._expected[stage, reason] += count

    def drain(self, *others: Harness) -> list[Outcome]:
        """Run messages until none is left that can run, in an order that the seed decides: see ``Harness.drain``.

        Raises ``AssertionError`` with the trace of each dead letter that the test did not expect.
        """
        outcomes = super().drain(*others)
        for each in (self, *others):
            if isinstance(each, RunningApp):
                each.check_dead_letters()
        return outcomes

    def check_dead_letters(self, *, is_over: bool = False) -> None:
        """Raise ``AssertionError`` for unexpected dead letters, once, and for missing ones if the test ``is_over``."""
        letters = [each for each in self.dead_letters() if each.stage in self.stages]
        missing, found = matched(self._expected, letters)
        unexpected = [each for each in found if each.message_id not in self._reported]
        self._reported.update(each.message_id for each in unexpected)
        if unexpected:
            raise AssertionError("\n\n".join(map(_described, unexpected)))
        if is_over and missing:
            stages = ", ".join(f"{count} of {stage}" for (stage, _), count in sorted(missing.items()))
            raise AssertionError(f"expected dead letters are missing: {stages}")


@contextmanager
def run(
    app: AnApp,
    database: str | None = None,
    *,
    queue: str | None = None,
    beside: RunningApp | None = None,
    seed: int = 0,
    clock: ManualClock | None = None,
) -> Iterator[RunningApp]:
    """Run an app on ``database`` during the block, in this thread, with a virtual clock.

    ``database``  a URL, or ``memory:`` for an SQLite file that ends with the block. Default: the app's own database
    ``queue``     the URL of the queue's database. Default: ``memory:`` if the app declares a queue and ``database`` is
                  given
    ``beside``    another running app, whose databases and clock this app shares
    ``seed``      decides the order of the messages, and every random value of Stagepost
    ``clock``     the virtual clock. Default: the app's, or a new one

    An app may be run any number of times, also on different databases. The app's broker is left out: a message to
    another service waits in the database, for an app that has its endpoint.
    The end of the block raises ``AssertionError`` if dead letters were expected that are missing.
    """
    if beside is not None:
        database, queue, clock = beside.app.database, beside.app.queue, beside.clock
    with app_on(app, database, queue=queue, seed=seed, clock=clock) as placed, closing(RunningApp(placed, seed)) as ran:
        yield ran
        ran.check_dead_letters(is_over=True)


@contextmanager
def app_on(
    app: AnApp,
    database: str | None = None,
    *,
    queue: str | None = None,
    seed: int = 0,
    clock: ManualClock | None = None,
) -> Iterator[App]:
    """Place an app on databases during the block, without running it: see ``run``."""
    found = find_app(app)
    engine = engine_of(found)
    if queue is None:
        is_moved = database is not None
        queue = engine.databases.queue if not is_moved else MEMORY if engine.databases.declared_queue else None
    own_clock = engine.clock if isinstance(engine.clock, ManualClock) else ManualClock()
    with TemporaryDirectory(prefix="stagepost-memory-") as folder:
        place = Place(
            _in_folder(Path(folder) / "memory.db", database or found.database),
            None if queue is None else _in_folder(Path(folder) / "queue.db", queue),
        )
        with moved(found, place, clock or own_clock, Random(seed)):  # noqa: S311 - an order, no secret
            yield found


def find_app(app: AnApp) -> App:
    """Return the app, also where it is named or made. Raises ``DeclarationError``."""
    if isinstance(app, str):
        return load_app(app)
    return app if isinstance(app, App) else app()


def run_statement(app: App, statement: str, /, **parameters: Any) -> Rows:
    """Run one statement on the database of the app's data and commit it. Raises the driver's errors.

    Parameters are named, as in ``ctx.sql``.
    """
    engine = engine_of(app)
    with closing((engine.databases.business or engine.store).session()) as session, committing(session):
        session.lend("a test", lambda: None)
        try:
            return session.execute(statement, parameters)
        finally:
            session.take_back()


def matched(
    expected: Counter[tuple[str, DeathReason | None]], letters: Sequence[DeadLetter]
) -> tuple[Counter[tuple[str, DeathReason | None]], list[DeadLetter]]:
    """Return the expectations that no letter meets, and the letters that meet no expectation."""
    missing, unexpected = expected.copy(), []
    for letter in letters:
        # The narrower expectation comes first, so that the wider one is left for other letters.
        met = next((each for each in ((letter.stage, letter.reason), (letter.stage, None)) if missing[each] > 0), None)
        if met is None:
            unexpected.append(letter)
        else:
            missing[met] -= 1
    return +missing, unexpected


def _in_folder(file: Path, url: str) -> str:
    return f"sqlite:///{file}" if url == MEMORY else url


def _described(letter: DeadLetter) -> str:
    return (
        f"unexpected dead letter of {letter.stage} in flow {letter.flow_id!r}, {letter.reason}: {letter.summary}\n"
        f"{letter.stack.rstrip()}\nIf it is intended, call expect_dead_letters({letter.stage!r}) before drain."
    )
