"""``stagepost release``: only the mark of the named store goes, and then another store may receive."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from click.testing import CliRunner

from stagepost.broker.memory import MemoryBroker
from stagepost.cli.main import main
from stagepost.flow.errors import AddressTaken
from tests.edges.direct_service import broker_named

GONE, HERE = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> MemoryBroker:
    broker = broker_named(f"memory:{request.node.name}", is_atomic=False)
    with closing(broker.connect(1)) as connection:
        connection.prepare(["shop.pay"], GONE)
    return broker


def test_an_address_whose_store_is_gone_is_free_for_another(broker: MemoryBroker) -> None:
    command = ["release", "shop.pay", "--store", GONE, "--broker", broker.url]
    with closing(broker.connect(1)) as connection:
        with pytest.raises(AddressTaken):
            connection.prepare(["shop.pay"], HERE)
        done = CliRunner().invoke(main, command)
        assert (done.exit_code, "is free" in done.output) == (0, True)
        connection.prepare(["shop.pay"], HERE)
    again = CliRunner().invoke(main, [*command, "--json"])
    assert again.exit_code == 1
    assert json.loads(again.output)["released"] is False


def test_the_mark_of_another_store_stays(broker: MemoryBroker) -> None:
    done = CliRunner().invoke(main, ["release", "shop.pay", "--store", HERE, "--broker", broker.url])
    assert (done.exit_code, "nothing was changed" in done.output) == (1, True)
    with closing(broker.connect(1)) as connection:
        connection.prepare(["shop.pay"], GONE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "Use --broker, STAGEPOST_BROKER or stagepost.toml"),
        (["--broker", "kafka://host"], "not a broker URL"),
        (["--broker", "stomp://127.0.0.1:1"], "no host of the broker"),
    ],
)
def test_a_broker_that_cannot_be_asked_is_named(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.cli.release.CONNECT_SECONDS", 0.1)
    monkeypatch.delenv("STAGEPOST_BROKER", raising=False)
    done = CliRunner().invoke(main, ["release", "shop.pay", "--store", GONE, *options])
    assert done.exit_code == 2
    assert words in done.stderr
