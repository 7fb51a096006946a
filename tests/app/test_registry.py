"""The registry of stores: drivers by URL scheme, also of other packages, and the capabilities that start-up needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.flow.errors import CapabilityMissing, DeclarationError
from stagepost.ports import registry
from stagepost.ports.registry import Driver, driver_of, require
from stagepost.ports.session import Session
from stagepost.runtime.databases import open_store
from stagepost.store.postgres import driver as postgres
from stagepost.store.sqlite import driver as sqlite
from stagepost.store.sqlite import temporary as memory
from tests.app import thin_store
from tests.toy_store.store import ToyStore

BUILT_IN: list[tuple[str, Driver]] = [
    ("memory:", memory),
    ("sqlite:///shop.db", sqlite),
    ("postgresql://here/shop", postgres),
    ("postgres://here/shop", postgres),
]


@dataclass
class Order:
    order_id: str


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, for the metadata of installed packages."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    registry.DRIVERS.forget()


def install(folder: Path, package: str, scheme: str) -> None:
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[stagepost.stores]\n{scheme} = tests.app.thin_store:driver\n")


@pytest.mark.parametrize(("url", "expected"), BUILT_IN)
def test_a_scheme_of_stageposts_own_finds_its_driver(url: str, expected: Driver) -> None:
    assert driver_of(url) is expected


def test_another_package_adds_a_store_by_an_entry_point(packages: Path) -> None:
    install(packages, "thin-store", "thin")
    assert driver_of("thin://here") is thin_store.driver
    assert isinstance(open_store("thin://here"), ToyStore)
    with pytest.raises(DeclarationError, match="thin://there is no thin store"):
        App("shop", database="thin://there")


def test_two_packages_for_one_scheme_are_refused_by_name(packages: Path) -> None:
    install(packages, "thin-store", "thin")
    install(packages, "thinner-store", "thin")
    with pytest.raises(DeclarationError, match=r"thin-store and thinner-store\. Uninstall one of them"):
        driver_of("thin://here")


def test_a_start_on_sqlite_reads_no_entry_points() -> None:
    code = """
import sys
from stagepost import App
App("shop", database="sqlite:///shop.db")
print("importlib.metadata" in sys.modules, "psycopg" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_missing_driver_of_postgresql_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stagepost.store.postgres.store", None)
    app = App("shop", database="postgresql://here/shop")
    with pytest.raises(DeclarationError, match=r"its driver cannot be imported .* pip install 'stagepost\[postgres\]'"):
        _ = engine_of(app).store


def test_a_stage_that_pauses_needs_circuits(packages: Path) -> None:
    install(packages, "thin-store", "thin")
    app = App("shop", database="thin://here")

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    with pytest.raises(CapabilityMissing, match=r"thin://here lacks the capability 'circuits'. pay .* pause_after=0"):
        engine_of(app).modes()


def test_single_needs_no_capability(packages: Path) -> None:
    install(packages, "thin-store", "thin")
    app = App("shop", database="thin://here", pause_after=0)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    assert engine_of(app).modes() == {"pay": "single"}


def test_a_queue_in_another_database_needs_inbox_and_outbox(packages: Path) -> None:
    install(packages, "thin-store", "thin")
    app = App("shop", database="thin://here", queue="sqlite:///queue.db", pause_after=0)
    with pytest.raises(CapabilityMissing, match=r"lacks the capability 'inbox'. .* leave queue= out"):
        engine_of(app).modes()


def test_the_doctor_and_the_export_are_refused_where_a_store_has_none(packages: Path) -> None:
    install(packages, "thin-store", "thin")
    thin = driver_of("thin://here")
    with pytest.raises(CapabilityMissing, match="thin://here lacks the capability 'export'"):
        thin.export("thin://here")
    with pytest.raises(CapabilityMissing, match="'health'"):
        thin.examine("thin://here", "the arguments", engine_of(App("shop")).clock)
    with pytest.raises(CapabilityMissing, match=r"'shared'\. Run it on one machine"):
        require("thin://here", "shared", "Run it on one machine.")


def test_a_session_answers_for_the_capabilities_that_it_lacks() -> None:
    session = cast("Session", type("ThinSession", (Session,), {})())
    assert session.circuits.paused() == []
    assert session.declarations.undeclared() == []
    assert (session.inbox.backlog().size, session.outbox.backlog().size, session.outbox.next_at()) == (0, 0, None)
    with pytest.raises(CapabilityMissing, match="'circuits'"):
        session.circuits.lock("pay")
    for name in ("replays", "runs", "decisions", "prepared"):
        with pytest.raises(CapabilityMissing, match=name.removesuffix("d")):
            getattr(session, name)
    with pytest.raises(CapabilityMissing, match=r"'subscriptions'\. Publishing and @app.subscribe need it"):
        session.subscriptions.listed(["prices"])
