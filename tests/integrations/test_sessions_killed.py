"""A worker is killed with SIGKILL at each point of a run that touches the database through a session alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connections

from stagepost import App, Target
from tests.integrations import django_shop
from tests.integrations.models import Order, make_tables, sales, url_of
from tests.places import bare_environment

POINTS = ["before_flush", "after_flush", "handled", "recorded", "committed"]
ORDERS = 3
MODULES = {"sqlalchemy": "killed_app", "django": "killed_django_app"}


@pytest.mark.parametrize(
    "point", [pytest.param(each, marks=[] if each == "after_flush" else pytest.mark.more) for each in POINTS]
)
@pytest.mark.longer_on_postgres
@pytest.mark.parametrize("orm", ["sqlalchemy", "django"])
def test_a_worker_killed_in_a_session_leaves_every_row_exactly_once(
    new_app: Callable[..., App], tmp_path: Path, point: str, orm: str
) -> None:
    if orm == "django" and point == "before_flush":
        pytest.skip("Django writes at once")
    app = new_app()
    (make_tables if orm == "sqlalchemy" else django_shop.make_tables)(app)
    connections["default"].close()
    pay: Target[Order, None] = app.remote("pay", Order)
    for n in range(ORDERS):
        app.start(pay, Order(f"o{n}"), flow_id=f"o{n}")
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "stagepost", "worker", f"tests.integrations.{MODULES[orm]}:app", "--drain"]
    ended = subprocess.run(
        [*command, "--threads", "1"],
        env={
            **bare_environment(),
            "STAGEPOST_DATABASE": url_of(app),
            "KILL_AT": point,
            "KILLED": str(killed),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert killed.exists()
    wanted = [f"o{n}" for n in range(ORDERS)]
    assert sorted(sales(app)) == sorted([*wanted, *(f"counted {each}" for each in wanted)])
