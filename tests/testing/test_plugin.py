"""The pytest plugin, in projects of its own."""

from __future__ import annotations

import pytest

from tests.servers.postgres import VARIABLE, Server

pytest_plugins = ["pytester"]

SHOP = """
from dataclasses import dataclass
from stagepost import App, Context

@dataclass
class Order:
    number: int

def make_app():
    app = App("shop")

    @app.endpoint("orders.place")
    def place(ctx: Context, order: Order) -> None:
        ctx.sql("INSERT INTO sale (number) VALUES (:number)", number=order.number)

    return app
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(plugin_shop=SHOP)
    pytester.makeini("[pytest]\nstagepost_app = plugin_shop:make_app()\npythonpath = .\n")
    pytester.plugins = []
    return pytester


ORDERED = """
    import pytest
    from plugin_shop import Order

    @pytest.fixture(params=["memory", "sqlite", "postgres"])
    def shop(request):
        found = request.getfixturevalue(f"stagepost_{request.param}")
        found.sql("CREATE TABLE sale (number INTEGER)")
        return found

    def test_orders(shop, stagepost_clock):
        assert shop.clock is stagepost_clock
        for number in range(6):
            shop.app.start(shop.app.target("orders.place"), Order(number), flow_id=str(number))
        shop.drain()
        print("order", [row[0] for row in shop.sql("SELECT number FROM sale")])
"""


def test_an_app_runs_in_memory_on_sqlite_and_on_postgresql_in_the_order_of_the_seed(
    project: pytest.Pytester, postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, postgres_server.url)
    project.makepyfile(test_orders=ORDERED)
    found: dict[str, set[str]] = {}
    for seed in ("1", "2", "1"):
        done = project.runpytest("-s", f"--stagepost-seed={seed}")
        done.assert_outcomes(passed=3)
        done.stdout.fnmatch_lines([f"stagepost: messages run in the order of --stagepost-seed={seed}"])
        found.setdefault(seed, set()).update(line.partition("order ")[2] for line in done.outlines if "order [" in line)
    assert len(found["1"]) == len(found["2"]) == 1
    assert found["1"] != found["2"]
    with_leftovers = "SELECT count(*) FROM pg_database WHERE datname LIKE 'stagepost\\_test\\_%'"
    assert _scalar(postgres_server.url, with_leftovers) == 0


def test_without_a_server_the_tests_on_postgresql_are_skipped_by_name(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    project.makepyfile(test_orders=ORDERED)
    done = project.runpytest("-rs", "-k", "postgres")
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines(["*STAGEPOST_TEST_POSTGRES names no PostgreSQL server*"])


def test_a_missing_dead_letter_fails_the_test_that_expected_it(project: pytest.Pytester) -> None:
    project.makepyfile("def test_it(stagepost_memory):\n    stagepost_memory.expect_dead_letters('orders.place')\n")
    done = project.runpytest()
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*expected dead letters are missing: 1 of orders.place"])


def test_the_app_may_come_from_a_fixture_and_is_asked_for_without_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_named="""
        import pytest
        from stagepost import App

        class TestNamed:
            @pytest.fixture
            def stagepost_app(self):
                return App("mine")

            def test_mine(self, stagepost_memory):
                assert stagepost_memory.app.name == "mine"

        def test_none(stagepost_memory): ...
        """
    )
    done = pytester.runpytest()
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*no app is named: set stagepost_app = module:make_app() in pytest's settings*"])


def test_a_seed_that_is_no_number_is_refused(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest("--stagepost-seed=often")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--stagepost-seed=often is neither a number nor 'random'*"])


def _scalar(url: str, statement: str) -> object:
    import psycopg

    with psycopg.connect(url) as connection:
        row = connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]
