"""``stagepost status``"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.flow.clock import SECOND, SystemClock
from stagepost.ports.edge import EdgeView
from stagepost.runtime.declarations import declare_stages
from stagepost.testing import Harness
from stagepost.testing.contract.givens import committed
from tests.cli.shop import Order, Shop, command, parsed
from tests.liveness.scripted_worker import scripted_worker


def test_an_empty_store_is_drained_and_nobody_works_on_it(shop: Shop) -> None:
    result = command("status", "--database", shop.url)
    assert result.exit_code == 0
    assert "drained" in result.stdout
    assert "no message waits" in result.stdout
    assert "no worker is running" in result.stdout


def test_depths_are_told_by_stage(shop: Shop) -> None:
    shop.order("order:dead", "fail")
    shop.run()
    for number in range(3):
        shop.order(f"order:{number}")
    shop.order("order:later", delay=3600)
    shop.harness.access.claimer.claim(["shop.pay"], 1, "shop/1", "node")
    result = parsed(command("status", "--json", "--database", shop.url))
    assert result["drained"] is False
    assert result["workers"] == []
    (depth,) = result["depths"]
    oldest = depth.pop("oldest_at")
    assert depth == {"stage": "shop.pay", "ready": 2, "claimed": 1, "delayed": 1, "suspect": 0, "dead": 1}
    assert oldest > 1_600_000_000_000_000
    text = command("status", "--database", shop.url).stdout
    assert "work to do" in text
    assert text.splitlines()[2].split()[:6] == ["shop.pay", "2", "1", "1", "·", "1"]


def test_messages_at_a_stage_that_no_app_declares_are_told_of(shop: Shop) -> None:
    shop.order("order:1")
    (found,) = parsed(command("status", "--json", "--database", shop.url))["undeclared"]
    assert found == {"stage": "shop.pay", "app": None, "dropped_at": None}
    text = " ".join(command("status", "--database", shop.url).stdout.split())
    assert "messages wait at shop.pay, which no app declares. Start a worker of the app that it belongs to" in text
    declare_stages(engine_of(shop.app))
    assert parsed(command("status", "--json", "--database", shop.url))["undeclared"] == []
    assert "no app declares" not in command("status", "--database", shop.url).stdout


def test_workers_are_told_by_what_they_run_and_the_dead_among_them_too(shop: Shop) -> None:
    locks = shop.path.with_name(f"{shop.path.name}-workers")
    shop.order("order:1")
    (held,) = shop.harness.access.claimer.claim(["shop.pay"], 1, owner_of(locks, shop), "node")
    with scripted_worker(locks, app="shop", slots=1) as busy, scripted_worker(locks, app="shop", slots=1) as dead:
        # What was settled may stay on record: it is not what runs.
        busy.told("note", 0, held.row, held.deliveries)
        dead.told("note", 0, 12345, 1)
        dead.kill()
        workers = {
            each["process"]: each for each in parsed(command("status", "--json", "--database", shop.url))["workers"]
        }
        assert workers[busy.pid]["state"] == "alive"
        assert workers[dead.pid]["state"] == "dead"
        assert workers[dead.pid]["running"] == 0
        text = command("status", "--database", shop.url).stdout
        assert "scripted@here  alive" in text
        assert "scripted@here  dead" in text


def test_the_broker_is_told_as_each_living_process_sees_it(shop: Shop) -> None:
    locks = shop.path.with_name(f"{shop.path.name}-workers")
    now = SystemClock().now()
    seen = EdgeView("scripted@here", "amqp://guest@rabbit", "away", now - 120 * SECOND, "[it] is down", 7, 5, now)
    session = shop.harness.access.session
    with committed(session):
        session.edge.note_view(seen)
        session.edge.note_view(seen._replace(node="dead@here"))
    assert parsed(command("status", "--json", "--database", shop.url))["brokers"] == []
    with scripted_worker(locks, app="shop"):
        (found,) = parsed(command("status", "--json", "--database", shop.url))["brokers"]
        assert found == seen._asdict()
        text = command("status", "--database", shop.url).stdout
        assert "amqp://guest@rabbit  away for 2 min, 7 arrived, 5 dispatched by scripted@here: [it] is down" in text


def owner_of(locks: Path, shop: Shop) -> str:
    return "shop/nobody"


def test_looking_takes_no_lock_from_the_living_and_leaves_the_files_of_the_dead(shop: Shop) -> None:
    locks = shop.path.with_name(f"{shop.path.name}-workers")
    with scripted_worker(locks, app="shop") as living, scripted_worker(locks, app="shop") as dead:
        dead.kill()
        for _ in range(3):
            command("status", "--database", shop.url)
        assert dead.path.exists()
        assert living.told("look") == f'{{"{dead.path.name}": "dead"}}'


def test_what_is_held_in_the_stages_database_is_told_and_keeps_it_from_being_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    business, queue = f"sqlite:///{tmp_path}/shop.db", f"sqlite:///{tmp_path}/post.db"
    app = App("shop", database=business, queue=queue)

    @app.endpoint("shop.pay")
    def pay(ctx: Context, order: Order) -> None: ...

    app.start(pay, Order(1), flow_id="order:1")
    # Starting a flow needs the stages' database alone; whoever looks needs both.
    engine_of(app).access().close()
    monkeypatch.setenv("STAGEPOST_DATABASE", business)
    monkeypatch.setenv("STAGEPOST_QUEUE", queue)
    told = parsed(command("status", "--json"))
    assert told["database"] == queue
    assert not told["drained"]
    assert told["held"]["size"] == 1
    assert "1 started and not in the queue yet, the oldest for" in command("status").stdout
    with closing(Harness(app)) as worker:
        worker.drain()
    told = parsed(command("status", "--json"))
    assert told["drained"]
    assert told["held"] == told["unmarked"] == {"size": 0, "oldest_at": None}
    assert "in the queue yet" not in command("status").stdout
