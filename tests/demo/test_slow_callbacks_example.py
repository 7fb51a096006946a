"""The pool that starves: a send after the commit holds every connection, and Stagepost's outbound rows hold none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples.slow_callbacks.__main__ import main
from examples.slow_callbacks.callers import CONNECTIONS, WORKING, Outcome, run
from tests.servers.rabbitmq import RabbitServer

pytestmark = pytest.mark.more


def test_a_send_after_the_commit_starves_the_pool_while_the_broker_is_stopped(
    new_postgres: Callable[[], str], rabbitmq: RabbitServer
) -> None:
    found = run("send after the commit", new_postgres(), rabbitmq.url(host=rabbitmq.add_host()), rabbitmq.pid)
    assert found == Outcome(found.done, CONNECTIONS, CONNECTIONS, "publish", has_recovered=True)
    assert found.done < WORKING


def test_flows_are_started_while_the_broker_is_stopped(new_postgres: Callable[[], str], rabbitmq: RabbitServer) -> None:
    found = run("stagepost", new_postgres(), rabbitmq.url(host=rabbitmq.add_host()), rabbitmq.pid)
    assert (found.done, found.has_recovered) == (WORKING, True)


def test_wrong_arguments_show_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["postgresql://nowhere"]) == 2
    assert "usage" in capsys.readouterr().err
