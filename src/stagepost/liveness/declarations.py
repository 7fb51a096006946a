"""Tells the store which app declares which stage, and refuses an app whose stages another app declares.

A stage that a newer start of its app no longer declares is dropped, not deleted: in a rolling deploy, processes of the
older code may still run it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing

from stagepost.app.app import App
from stagepost.flow.declaration import Declaration
from stagepost.flow.errors import DeclarationError, StoreContention
from stagepost.liveness.lock_row import LOST_SECONDS
from stagepost.liveness.proof import survey_of
from stagepost.liveness.survey import LOOKS_MIN
from stagepost.liveness.takeover import Takeover
from stagepost.liveness.undeclared import Process, holders, living

PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


def declare_stages(app: App) -> None:
    """Tell the store what the app declares, where it does not know; waits while another writer holds the database.
    Raises ``StoreError``, and ``DeclarationError`` for a stage that another app declares."""
    while True:
        try:
            _declare(app)
        except StoreContention as error:
            logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
            threading.Event().wait(PAUSE_SECONDS)
        else:
            return


def _declare(app: App) -> None:
    with closing(app.store.session()) as session:
        # Mostly nothing has changed, and then the start must not wait for another writer.
        if not _changes(app, session.declarations.listed()):
            return
        session.begin()
        try:
            session.declarations.lock()
            known = session.declarations.listed()
            stages = app.stages()
            theirs = [each for each in known if each.stage in stages and each.app != app.name]
            processes = living(app.store, app.clock) if theirs else []
            # A stage that the other app dropped, and that no process of it runs any more, is free.
            taken = [each for each in theirs if each.dropped_at is None or holders(each, processes)]
            if taken:
                endpoints = {stages[each.stage].position.endpoint for each in taken}
                raise DeclarationError(_refusal(app, endpoints, taken, processes))
            session.declarations.put(_changes(app, known))
            session.commit()
        finally:
            session.rollback()


def reassign(app: App, endpoints: Collection[str]) -> list[Declaration]:
    """Give endpoints that another app declared to this app, which declares them now, and release the messages that dead
    processes of the other app hold. Returns the stages as they were declared before. Raises ``StoreError``, and
    ``DeclarationError`` while a process of the other app lives."""
    for endpoint in endpoints:
        app.target(endpoint)
    stages = {address for address, stage in app.stages().items() if stage.position.endpoint in endpoints}
    with closing(app.store.session()) as session:
        session.begin()
        try:
            session.declarations.lock()
            known = session.declarations.listed()
            at_them = [each for each in known if each.endpoint in endpoints or each.stage in stages]
            theirs = [each for each in at_them if each.app != app.name]
            processes = living(app.store, app.clock)
            if any(holders(each, processes) for each in theirs):
                raise DeclarationError(_refusal(app, endpoints, theirs, processes))
            session.declarations.put([each._replace(app=app.name) for each in theirs])
            session.commit()
        finally:
            session.rollback()
    for name in {each.app for each in theirs}:
        _take_over(app, name)
    return theirs


def _take_over(app: App, name: str) -> None:
    """Take over from the dead processes of an app that does not start again under that name."""
    with closing(app.access()) as access, closing(survey_of(app.store, name, app.clock)) as survey:
        takeover = Takeover(app, access, app.node("reassign"), survey, app_name=name)
        for _ in range(LOOKS_MIN + 1):
            takeover.sweep()
            if not any(owner.startswith(f"{name}/") for owner in access.transport.owners()):
                break
            # On another machine a process is seen to be gone by looking again.
            threading.Event().wait(LOST_SECONDS / 2)


def _changes(app: App, known: Sequence[Declaration]) -> list[Declaration]:
    now = app.clock.now()
    stages = app.stages()
    wanted = [Declaration(address, stage.position.endpoint, app.name) for address, stage in stages.items()]
    gone = [each for each in known if each.app == app.name and each.dropped_at is None and each.stage not in stages]
    return [each for each in wanted if each not in known] + [each._replace(dropped_at=now) for each in gone]


def _refusal(app: App, endpoints: Iterable[str], taken: Sequence[Declaration], processes: Sequence[Process]) -> str:
    others = " and ".join(sorted({repr(each.app) for each in taken}))
    names = sorted(endpoints)
    nodes = sorted({process.node for each in taken for process in holders(each, processes)})
    refused = f"app {app.name!r} declares {', '.join(names)}, and so does app {others} on {app.store.url}"
    command = f"stagepost reassign {' '.join(names)} --app MODULE:APP"
    if nodes:
        return (
            f"{refused}, which works there ({', '.join(nodes)}). Give one of the two another name; if the app was "
            f"renamed, stop what runs under its old name, and run: {command}"
        )
    return (
        f"{refused}, of which no process is seen to work there. If the app was renamed, run: {command}. If it was not, "
        "give one of the two another name."
    )
