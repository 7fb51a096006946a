"""``stagepost doctor`` at real brokers: settings that break a promise are named with their remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from stagepost.broker.activemq.configuration import LOSES, SLOWS, faults_of
from stagepost.flow.clock import SECOND, SystemClock
from stagepost.ports.broker import BrokerConnection, EdgeAddresses, ExaminableConnection, Publication
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.ports.findings import Finding
from stagepost.runtime.databases import open_store
from stagepost.testing.contract.givens import committed
from tests.cli.shop import command, parsed
from tests.servers.activemq import ActiveMQServer
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import PATIENCE_SECONDS, wait_until

OURS, OTHERS = "store-1", "store-2"
OLD = 2 * 3600 * SECOND


def connected(url: str) -> BrokerConnection:
    clock = SystemClock()
    return broker_driver_of(url).broker(url, clock, Random(0)).connect(PATIENCE_SECONDS)


def examined(connection: BrokerConnection, addresses: EdgeAddresses, later: int = 0) -> dict[str, Finding]:
    assert isinstance(connection, ExaminableConnection)
    return {each.code: each for each in connection.examine(addresses, SystemClock().now() + later)}


def severities(found: dict[str, Finding]) -> dict[str, str]:
    return {code: each.severity for code, each in found.items() if each.severity != "ok"}


class Service:
    """The addresses of a store that are prepared at the broker."""

    def __init__(self, connection: BrokerConnection) -> None:
        number = uuid4().hex[:8]
        self.connection = connection
        self.received, self.sent = f"shop{number}", f"ledger{number}"
        connection.prepare([self.received], OURS)

    def addresses(self, *, store: str = OURS, consumers: int = 1) -> EdgeAddresses:
        return EdgeAddresses(store, {self.received: consumers}, [self.sent])

    def send(self) -> None:
        assert self.connection.publish([Publication(self.sent, "m1", b"{}", {})], PATIENCE_SECONDS) == ["confirmed"]


@pytest.fixture
def rabbit(rabbitmq: RabbitServer) -> Iterator[Service]:
    with closing(connected(rabbitmq.url())) as connection:
        yield Service(connection)


@pytest.fixture
def active(activemq: ActiveMQServer) -> Iterator[Service]:
    with closing(connected(activemq.url())) as connection:
        yield Service(connection)


def test_rabbitmq_without_its_management_api(rabbitmq: RabbitServer, rabbit: Service) -> None:
    found = examined(rabbit.connection, rabbit.addresses())
    assert severities(found) == {"broker-targets": "warning", "broker-unchecked": "warning"}
    assert found["broker-targets"].who == ({"target": rabbit.sent, "error": "no queue takes its messages"},)
    assert "management=" in found["broker-unchecked"].remedy
    with closing(connected(rabbitmq.url())) as other:
        other.prepare([rabbit.sent], OTHERS)
        rabbit.send()
        other.subscribe({rabbit.received: 1})
        found = examined(rabbit.connection, rabbit.addresses(store=OTHERS, consumers=0))
    assert severities(found) == {
        "broker-queues": "critical",
        "broker-consumers": "critical",
        "broker-targets": "warning",
        "broker-unchecked": "warning",
    }
    (mark,) = found["broker-queues"].who
    assert f"stagepost release {rabbit.received} --store '{OURS}'" in mark["error"]
    assert found["broker-consumers"].who == ({"queue": rabbit.received, "consumers": 1, "of_this_store_at_most": 0},)
    assert found["broker-targets"].who[0]["error"] == "no client reads it"


@pytest.mark.more
def test_rabbitmq_with_its_management_api(rabbitmq: RabbitServer) -> None:
    url = rabbitmq.url(f"management={rabbitmq.enable_management()}")
    with closing(connected(url)) as connection, closing(connected(url)) as ours:
        service = Service(connection)
        queue = f'rabbit_misc:r(<<"/">>, queue, <<"{service.sent}">>)'
        rabbitmq.control("eval", f'rabbit_amqqueue:declare({queue}, true, false, [], none, <<"t">>).')
        ours.subscribe({service.received: 1})
        found = examined(connection, service.addresses(consumers=0))
        assert severities(found) == {"broker-targets": "warning"}
        assert found["broker-targets"].who == ({"target": service.sent, "error": "it has no dead-letter target"},)

        limits = '{"delivery-limit": 3, "expires": 1000000}'
        rabbitmq.control("set_policy", "limits", service.received, limits, "--apply-to", "queues")

        wanted = {(service.received, "delivery-limit"), (f"_store.{service.received}", "expires")}

        def is_seen() -> bool:
            finding = examined(connection, service.addresses())["broker-policies"]
            return finding.severity == "critical" and wanted <= {
                (each["queue"], each["setting"]) for each in finding.who
            }

        wait_until(is_seen, "the policy is seen")
        rabbitmq.control("clear_policy", "limits")


def test_the_command_examines_the_broker_of_the_settings(
    rabbitmq: RabbitServer, new_sqlite: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = new_sqlite()
    for name, value in {"STAGEPOST_DATABASE": database, "STAGEPOST_BROKER": rabbitmq.url()}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_of_doctor.py").write_text(
        "from tests.edges.service import Order\nfrom stagepost import App\n"
        "app = App('shop')\napp.remote('nowhere.to.be.found', Order)\n"
    )
    with closing(open_store(database).session()) as session, committed(session):
        session.retention.note_consumer("c1", "amqp://here", ["never.prepared"])
    result = command("doctor", "--json", "--app", "shop_of_doctor:app")
    found = {each["code"]: each for each in parsed(result)["findings"]}
    assert result.exit_code == 1
    assert (found["broker"]["severity"], found["broker-queues"]["severity"]) == ("ok", "critical")
    assert [each["target"] for each in found["broker-targets"]["who"]] == ["nowhere.to.be.found"]


@pytest.mark.more
def test_a_management_api_that_is_away_is_told(rabbitmq: RabbitServer) -> None:
    with closing(connected(rabbitmq.url("management=http://127.0.0.1:1"))) as connection:
        found = examined(connection, Service(connection).addresses())
    assert "does not answer" in found["broker-unchecked"].seen


def test_activemq_names_the_settings_of_its_file(activemq: ActiveMQServer, tmp_path: Path) -> None:
    with closing(connected(activemq.url(f"config={activemq.configuration}"))) as connection:
        service = Service(connection)
        found = examined(connection, service.addresses())
        assert severities(found) == {"broker-settings": "warning"}
        (fault,) = found["broker-settings"].who
        assert fault["setting"] == "transportConnector delayed without transport.tcpNoDelay=true"
        service.send()
        found = examined(connection, service.addresses(store=OTHERS), later=OLD)
    assert found["broker-queues"].who == ({"address": service.received, "store": OURS},)
    assert found["broker-targets"].severity == "warning"
    file = tmp_path / "activemq.xml"
    file.write_text(activemq.configuration.read_text().replace('persistent="true"', 'persistent="false"'))
    with closing(connected(activemq.url(f"config={file}"))) as connection:
        found = examined(connection, service.addresses())
    assert found["broker-settings"].severity == "critical"


def test_activemq_without_its_file_shows_the_delay_of_its_answers(activemq: ActiveMQServer, active: Service) -> None:
    def wait_for(connection: BrokerConnection, expected: dict[str, str]) -> None:
        # The doctor measures, and a busy machine may spoil a measurement.
        wait_until(lambda: severities(examined(connection, active.addresses())) == expected, f"it says {expected}")

    wait_for(active.connection, {"broker-unchecked": "warning"})
    with closing(connected(activemq.url(place=f"127.0.0.1:{activemq.delayed_port}"))) as slow:
        wait_for(slow, {"broker-settings": "warning", "broker-unchecked": "warning"})


@pytest.mark.parametrize(
    ("right", "wrong", "setting", "effect"),
    [
        ('persistent="true"', 'persistent="false"', 'broker persistent="false"', LOSES),
        ("<plugins>", "<memoryPersistenceAdapter/><plugins>", "memoryPersistenceAdapter", LOSES),
        ('DiskSyncStrategy="always"', 'DiskSyncStrategy="periodic"', "kahaDB journalDiskSyncStrategy", LOSES),
        (' sendFailIfNoSpaceAfterTimeout="3000"', "", "systemUsage without", SLOWS),
        ("<plugins>", "<plugins><discardingDLQBrokerPlugin/>", "discardingDLQBrokerPlugin", LOSES),
        ("<plugins>", '<plugins><timeStampingBrokerPlugin ttlCeiling="60000"/>', "timeStampingBrokerPlugin", LOSES),
        ("<plugins>", '<policyEntry gcInactiveDestinations="true"/><plugins>', "policyEntry gcInactive", LOSES),
        ("<plugins>", '<policyEntry gcInactiveDestinations="TRUE"/><plugins>', "policyEntry gcInactive", LOSES),
        ("<plugins>", '<policyEntry persistJMSRedelivered="true"/><plugins>', "policyEntry persistJMS", SLOWS),
    ],
)
def test_a_wrong_setting_of_activemq_is_named(
    tmp_path: Path, right: str, wrong: str, setting: str, effect: str
) -> None:
    text = ActiveMQServer(tmp_path / "broker").configuration.read_text()
    file = tmp_path / "activemq.xml"
    file.write_text(text)
    before = {each.setting for each in faults_of(file)}
    assert right in text
    file.write_text(text.replace(right, wrong))
    (found,) = [each for each in faults_of(file) if each.setting not in before]
    assert found.setting.startswith(setting)
    assert found.effect == effect
    assert found.remedy
