"""Which app declares which stage: known to the store, refused to a second app, right in a rolling deploy."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stagepost import App, Context, DeclarationError
from stagepost.app.app import engine_of
from stagepost.ports.declarations import Declaration
from stagepost.ports.session import Session
from stagepost.runtime.declarations import UndeclaredStages, declare_stages, living, reassign, undeclared
from stagepost.store.postgres.statements import SQL
from stagepost.store.sqlite.driver import path_of
from stagepost.testing.contract.givens import a_row, committed
from tests.liveness.scripted_worker import scripted_worker
from tests.waiting import wait_until


@dataclass
class Order:
    number: int


class Place:
    """One store, and living processes of apps in it."""

    def __init__(self, url: str, alive: Callable[[str], AbstractContextManager[object]]) -> None:
        self.url = url
        self._alive = alive
        self._processes = ExitStack()

    def app(self, name: str, *endpoints: str, database: str | None = None) -> App:
        """``pay:settle`` is an endpoint with a second stage."""
        app = App(name, database=database or self.url)

        def handle(ctx: Context, order: Order) -> None: ...

        for each in endpoints:
            endpoint, *more = each.split(":")
            staged = app.staged(endpoint)
            staged.stage(handle)
            for stage in more:

                def following(ctx: Context, order: Order) -> None: ...

                following.__name__ = stage
                staged.stage(following)
        return app

    def started(self, name: str, *endpoints: str) -> App:
        """An app that has declared its stages, and a process of it that lives."""
        app = self.app(name, *endpoints)
        declare_stages(engine_of(app))
        self.live(name)
        return app

    def live(self, name: str) -> None:
        self._processes.enter_context(self._alive(name))

    def end(self) -> None:
        """All that lives is killed."""
        self._processes.close()

    def put(self, *stages: str) -> None:
        with self.session() as session, committed(session):
            session.queue.enqueue([a_row(f"m-{stage}", stage) for stage in stages])

    def session(self) -> AbstractContextManager[Session]:
        return closing(engine_of(App("looks", database=self.url)).store.session())

    def declared(self) -> dict[str, str]:
        """By stage, the app that declares it; those that were dropped are left out."""
        with self.session() as session:
            return {each.stage: each.app for each in session.declarations.listed() if each.dropped_at is None}

    def undeclared(self) -> list[str]:
        app = App("looks", database=self.url)
        with self.session() as session:
            return [
                each.stage for each in undeclared(session, lambda: living(engine_of(app).store, engine_of(app).clock))
            ]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        path = tmp_path / "bank.db"
        place = Place(f"sqlite:///{path}", lambda app: scripted_worker(Path(f"{path}-workers"), app))
    else:
        url = request.getfixturevalue("new_postgres")()
        place = Place(url, lambda app: scripted_worker(url, app))
    yield place
    place.end()


def refused(app: App) -> str:
    with pytest.raises(DeclarationError) as caught:
        declare_stages(engine_of(app))
    return str(caught.value)


# What an app declares


def test_an_app_that_starts_to_work_declares_its_stages(place: Place) -> None:
    declare_stages(engine_of(place.app("shop", "pay:settle:confirm", "ship")))
    assert place.declared() == dict.fromkeys(["pay", "pay.settle", "pay.confirm", "ship"], "shop")
    with place.session() as session:
        assert {each.endpoint for each in session.declarations.listed()} == {"pay", "ship"}


def test_a_start_that_changes_nothing_waits_for_no_writer(place: Place) -> None:
    app = place.app("shop", "pay")
    declare_stages(engine_of(app))
    with place.session() as session:
        session.begin()
        session.declarations.lock()
        declare_stages(engine_of(app))
        session.rollback()


def test_a_start_that_changes_something_waits_for_a_writer_that_takes_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.transaction.database_wait.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("stagepost.store.sqlite.connection.BUSY_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr("stagepost.store.sqlite.writer_lock.WAIT_SECONDS_MAX", 0.01)
    place = Place(f"sqlite:///{tmp_path}/bank.db", lambda app: scripted_worker(tmp_path, app))
    app = place.app("shop", "pay")
    assert engine_of(app).store
    with closing(sqlite3.connect(tmp_path / "bank.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        starting = threading.Thread(target=declare_stages, args=[engine_of(app)])
        starting.start()
        wait_until(lambda: "database unavailable" in caplog.text, "it has met the writer")
        writer.execute("ROLLBACK")
        starting.join()
    assert place.declared() == {"pay": "shop"}


def test_subscribers_are_endpoints_too(place: Place) -> None:
    app = place.app("shop")

    @app.subscribe(app.topic("prices", Order), "shop.on_price")
    def on_price(ctx: Context, order: Order) -> None: ...

    declare_stages(engine_of(app))
    assert place.declared() == {"shop.on_price": "shop"}
    assert "shop.on_price" in refused(place.app("store", "shop.on_price"))


# A second app


def test_an_endpoint_of_a_living_app_is_refused_to_another_one(place: Place) -> None:
    place.started("shop", "pay", "ship")
    store = place.app("store", "mail", "ship", "pay")
    assert refused(store) == (
        f"app 'store' declares pay, ship, and so does app 'shop' on {engine_of(store).store.url}, which works there "
        "(scripted@here). Give one of the two another name; if the app was renamed, stop what runs under its old name, "
        "and run: stagepost reassign pay ship --app MODULE:APP"
    )
    assert place.declared() == {"pay": "shop", "ship": "shop"}


def test_an_endpoint_of_an_app_that_is_gone_is_nobodys_by_accident(place: Place) -> None:
    place.started("shop", "pay")
    place.end()
    told = refused(place.app("store", "pay"))
    assert (
        "No process of that app is seen to work there. If the app was renamed, run: stagepost reassign pay --app"
        in told
    )
    assert place.declared() == {"pay": "shop"}


def test_an_app_without_that_endpoint_is_not_refused(place: Place) -> None:
    place.started("shop", "pay")
    declare_stages(engine_of(place.app("store", "mail")))
    assert place.declared() == {"pay": "shop", "mail": "store"}


def test_a_stage_of_one_that_is_an_endpoint_of_the_other_is_refused(place: Place) -> None:
    """Both would take the same messages."""
    place.started("shop", "pay:settle")
    assert "app 'store' declares pay.settle, and so does app 'shop'" in refused(place.app("store", "pay.settle"))


def test_of_two_that_start_at_once_one_is_refused(place: Place) -> None:
    apps = [place.app(f"shop-{n}", *(f"endpoint-{each}" for each in range(20))) for n in range(4)]
    for each in apps:
        assert engine_of(each).store
    gate = threading.Barrier(len(apps))
    told: list[str] = []

    def start(app: App) -> None:
        gate.wait()
        try:
            declare_stages(engine_of(app))
        except DeclarationError as error:
            told.append(str(error))

    threads = [threading.Thread(target=start, args=[app]) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 3
    assert len(set(place.declared().values())) == 1


def can_be_locked(url: str) -> bool:
    """Whether another writer of declarations would get in at this moment."""
    try:
        if url.startswith("postgresql:"):
            with psycopg.connect(url, options="-c lock_timeout=10ms") as server:
                server.execute(SQL["lock_declarations"].text)
        else:
            with closing(sqlite3.connect(path_of(url), timeout=0)) as connection:
                connection.execute("BEGIN IMMEDIATE")
    except (psycopg.errors.LockNotAvailable, sqlite3.OperationalError):
        return False
    return True


def test_a_start_reads_what_it_decides_by_under_the_lock(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    app = place.app("shop", "pay")
    with place.session() as session:
        declarations = type(session.declarations)
    listed = declarations.listed
    was_free: list[bool] = []

    def try_and_list(self: Any) -> list[Declaration]:
        was_free.append(can_be_locked(place.url))
        return listed(self)

    monkeypatch.setattr(declarations, "listed", try_and_list)
    declare_stages(engine_of(app))
    # The first look only asks whether anything has changed.
    assert was_free == [True, False]


def test_an_endpoint_that_its_app_dropped_and_runs_nowhere_any_more_is_free(place: Place) -> None:
    place.started("shop", "pay", "ship")
    declare_stages(engine_of(place.app("shop", "ship")))
    assert "scripted@here" in refused(place.app("store", "pay"))
    place.end()
    place.live("shop")
    declare_stages(engine_of(place.app("store", "pay")))
    assert place.declared() == {"pay": "store", "ship": "shop"}


# A rename


def test_a_renamed_app_takes_its_endpoints_by_a_command(place: Place) -> None:
    place.started("shop", "pay:settle", "ship")
    renamed = place.app("store", "pay:settle", "ship")
    with pytest.raises(DeclarationError, match=r"which works there \(scripted@here\)"):
        reassign(engine_of(renamed), ["pay"])
    place.end()
    assert {each.stage for each in reassign(engine_of(renamed), ["pay"])} == {"pay", "pay.settle"}
    assert place.declared() == {"pay": "store", "pay.settle": "store", "ship": "shop"}
    assert "app 'store' declares ship, and" in refused(renamed)
    assert reassign(engine_of(renamed), ["pay", "ship"])
    declare_stages(engine_of(renamed))
    assert reassign(engine_of(renamed), ["pay", "ship"]) == []
    assert "'store'" in refused(place.app("shop", "pay"))


def test_only_an_app_that_declares_an_endpoint_takes_it(place: Place) -> None:
    place.started("shop", "pay")
    place.end()
    with pytest.raises(DeclarationError, match="app 'store' has no endpoint 'pay'; it has: mail"):
        reassign(engine_of(place.app("store", "mail")), ["pay"])


def test_what_the_old_name_held_when_it_was_killed_is_given_back(place: Place) -> None:
    place.started("shop", "pay")
    with place.session() as session, committed(session):
        session.queue.enqueue([a_row("m1", "pay")])
        session.queue.claim(["pay"], 1, "shop/killed", 0)
    place.end()
    renamed = place.app("store", "pay")
    reassign(engine_of(renamed), ["pay"])
    with closing(engine_of(renamed).access()) as access:
        assert access.session.queue.owners() == []
        assert [each.message_id for each in access.claimer.claim(["pay"], 1, "store/1", "node")] == ["m1"]


# A rolling deploy


def test_a_deploy_of_the_same_app_is_no_conflict(place: Place) -> None:
    place.started("shop", "pay", "ship")
    place.started("shop", "pay", "mail")
    declare_stages(engine_of(place.app("shop", "pay", "ship")))
    assert place.declared() == {"pay": "shop", "ship": "shop"}


def test_a_stage_that_the_newer_code_dropped_is_declared_for_as_long_as_the_older_code_runs(place: Place) -> None:
    place.put("pay", "ship", "mail")
    place.started("shop", "pay", "ship")
    assert place.undeclared() == ["mail"]
    newer = place.app("shop", "pay", "mail")
    declare_stages(engine_of(newer))
    assert place.undeclared() == []
    place.end()
    place.live("shop")
    assert place.undeclared() == ["ship"]


def test_a_stage_that_nobody_of_an_app_runs_at_the_moment_is_declared(place: Place) -> None:
    place.put("pay")
    assert place.undeclared() == ["pay"]
    place.started("shop", "pay")
    place.end()
    assert place.undeclared() == []


def test_replies_that_wait_for_a_process_are_at_no_stage(place: Place) -> None:
    place.put("shop.reply.0195b9b1-7c5e-7000-8000-000000000000")
    assert place.undeclared() == []


# The log


def told(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    lines = [each.getMessage() for each in caplog.records if getattr(each, "event", "") == "stage-undeclared"]
    caplog.clear()
    return lines


def test_each_stage_is_told_of_once(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.runtime.declarations.LOOK_SECONDS", 0)
    declare_stages(engine_of(place.app("shop", "pay", "ship")))
    declare_stages(engine_of(place.app("shop", "pay")))
    place.put("mail", "pay", "ship")
    with place.session() as session:
        stages = UndeclaredStages(engine_of(place.app("shop", "pay")), session)
        stages.look()
        what_to_do = "Start a worker of the app that it belongs to, and let that app import the module that declares it"
        assert told(caplog) == [
            f"messages wait at mail, which no app declares. {what_to_do}",
            f"messages wait at ship, which no app declares any longer; 'shop' did. {what_to_do}",
        ]
        stages.look()
        assert told(caplog) == []
        place.put("late")
        stages.look()
        assert [each.partition(",")[0] for each in told(caplog)] == ["messages wait at late"]
