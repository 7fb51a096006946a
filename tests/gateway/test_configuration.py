"""``gateway.toml``: its mistakes are named with their place, and it never holds a secret."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from stagepost import App, DeclarationError
from stagepost.cli.main import main
from stagepost.flow.errors import IllegalCall
from stagepost.gateway import Limits, Posted, Producer, Rejected, Route, asgi
from stagepost.gateway.configuration import app_of, gateway_of, read_configuration
from tests.gateway.asgi_client import client_of
from tests.gateway.gateways import Gateways
from tests.gateway.shop import ERP, ONE, WITH_ID
from tests.waiting import PATIENCE_SECONDS, wait_until

ROUTE = '[[route]]\nname = "orders"\n'
TO_CONSUMER = ROUTE + "[route.deliver]\nurl = 'https://nowhere.invalid/'\n"


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], object]:
    def write_and_read(text: str) -> object:
        path = tmp_path / "gateway.toml"
        path.write_text(text)
        configuration = read_configuration(path)
        return gateway_of(configuration, app_of(configuration, tmp_path), tmp_path)

    return write_and_read


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bind = ", "not valid TOML"),
        ("bind = 7", r"Expected `str`, got `int` - at `\$.bind`"),
        ("binds = 'x'", "unknown field `binds`"),
        ("bind = 'here'", "write host:port"),
        ("bind = '127.0.0.1:99999'", "write host:port"),
        ("bind = '0.0.0.0:80'\nanonymous = 'x'", "which others can reach"),
        ("bind = 'example.org:80'\nanonymous = 'x'", "which others can reach"),
        ("processes = 0", "processes"),
        ("[limits]\nbody_max = 0", "body_max"),
        ("certificate = 'x'", "needs both"),
        ("anonymous = 'x'", "has no route"),
        (TO_CONSUMER, "has no producer"),
        ("anonymous = 'x'\n" + ROUTE, "needs either to"),
        ("anonymous = 'x'\n" + TO_CONSUMER * 2, "twice"),
        ("anonymous = 'x'\n" + TO_CONSUMER.replace("orders", "healthz"), "cannot be a route's name"),
        ("anonymous = 'x'\n" + TO_CONSUMER.replace("orders", "Or/ders"), "cannot be a route's name"),
        ("anonymous = 'x'\n" + ROUTE + "to = 'a'", "no app is named"),
        ("anonymous = 'x'\n" + ROUTE + "id = []\n[route.deliver]\nurl = 'https://nowhere.invalid/'", "names no field"),
        (
            "anonymous = 'x'\n" + ROUTE + "id = 'a b'\n[route.deliver]\nurl = 'https://nowhere.invalid/'",
            "no header's name",
        ),
        ("anonymous = 'x'\n" + ROUTE + "rate = -1\n[route.deliver]\nurl = 'https://nowhere.invalid/'", "above 0"),
        ("anonymous = 'x'\n" + ROUTE + "burst = 1\n[route.deliver]\nurl = 'https://nowhere.invalid/'", "no rate"),
        ("anonymous = 'x'\n" + ROUTE + "type = 'T'\n[route.deliver]\nurl = 'https://nowhere.invalid/'", "has a type"),
        (
            "anonymous = 'x'\n" + ROUTE + "producers = ['y']\n[route.deliver]\nurl = 'https://nowhere.invalid/'",
            "names the producer 'y'",
        ),
        (
            "anonymous = 'x'\n" + ROUTE + "schema = 'gone.json'\n[route.deliver]\nurl = 'https://nowhere.invalid/'",
            "cannot be read",
        ),
        (
            "anonymous = 'x'\n" + ROUTE + "schema = {type = 7}\n[route.deliver]\nurl = 'https://nowhere.invalid/'",
            "is not valid",
        ),
        (
            "anonymous = 'x'\n"
            + ROUTE
            + "schema = {'$ref' = 'http://x/y'}\n[route.deliver]\nurl = 'https://nowhere.invalid/'",
            "fetches nothing",
        ),
        (
            "anonymous = 'x'\n" + ROUTE + "check = 'gone:check'\n[route.deliver]\nurl = 'https://nowhere.invalid/'",
            "no module 'gone'",
        ),
        (
            "anonymous = 'x'\n" + ROUTE + "check = 'json:gone'\n[route.deliver]\nurl = 'https://nowhere.invalid/'",
            "has no 'gone'",
        ),
        (
            "anonymous = 'x'\n" + ROUTE + "check = 'json:__doc__'\n[route.deliver]\nurl = 'https://nowhere.invalid/'",
            "cannot be called",
        ),
        ("[[producer]]\nname = 'a'\nsecrets = ['NOT_SET_ANYWHERE']\n" + TO_CONSUMER, "is not set"),
    ],
)
def test_a_mistake_is_named_at_the_start(text: str, reason: str, read: Callable[[str], object]) -> None:
    with pytest.raises(DeclarationError, match=reason):
        read(text)


def test_a_secret_comes_from_the_environment(read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERP_SECRET", "a secret of the environment")
    assert read("[[producer]]\nname = 'erp'\nsecrets = ['ERP_SECRET']\n" + TO_CONSUMER)


def test_the_command_prints_a_new_key_and_checks_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["gateway", "--new-key"], standalone_mode=False) in (None, 0)
    key, digest = (line.split()[1] for line in capsys.readouterr().out.splitlines()[:2])
    assert key.startswith("sp_")
    (tmp_path / "gateway.toml").write_text(f"[[producer]]\nname = 'erp'\nkeys = ['{digest}']\n{TO_CONSUMER}")
    assert main(["gateway", "--check"], standalone_mode=False) in (None, 0)
    assert capsys.readouterr().out == "POST /orders  to a consumer outside\n"
    (tmp_path / "gateway.toml").write_text(f"[[producer]]\nname = 'erp'\nkeys = ['{key}']\n{TO_CONSUMER}")
    assert main(["gateway", "--check"], standalone_mode=False) == 2
    # The mistake of a key in place of its hash must not spread the key.
    assert key not in capsys.readouterr().err


def test_a_check_rejects_with_some_statuses_only() -> None:
    assert Rejected("late", "too late", status=410).status == 410
    for status in (200, 401, 408, 409, 429, 500, 503):
        with pytest.raises(IllegalCall, match="402"):
            Rejected("late", "too late", status=status)


def test_a_gateway_is_mounted_in_another_web_app(sqlite_shop: App) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    gateway = asgi(sqlite_shop, routes=[Route("orders", to="orders.place")], anonymous="dev", limits=Limits())
    web: object = Starlette(routes=[Mount("/in/here", app=gateway)])
    with client_of(web) as client:  # type: ignore[arg-type]  # any ASGI app is called alike
        assert client.post("/in/here/orders", ONE, WITH_ID).json["status"] == "accepted"
        assert client.get("/in/here/orders/messages/order-1").json["status"] == "waiting"
        assert client.get("/in/here/openapi.json").json["servers"] == [{"url": "/in/here"}]
        assert client.get("/in/here/healthz").status == 200
        assert client.post("/orders", ONE, WITH_ID).status == 404


def test_attributes_of_an_event_reach_the_delivery(sqlite_shop: App) -> None:
    import msgspec

    from stagepost.app.app import engine_of
    from stagepost.flow.codec import decode, decode_envelope

    gateway = asgi(
        sqlite_shop,
        routes=[Route("events", deliver={"url": "https://nowhere.invalid"}, id="cloudevents")],
        producers=[ERP],
    )
    from tests.gateway.shop import WITH_KEY

    with client_of(gateway, WITH_KEY) as client:
        event = {"ce-specversion": "1.0", "ce-type": "t", "ce-source": "/s", "ce-id": "1", "ce-more": "m"}
        assert client.post("/events", b'{"b": 1,  "a": 2.50}', event).status == 200
    access = engine_of(sqlite_shop).access()
    (claim,) = access.claimer.claim(["gateway.events"], 1, "tester", "node")
    posted = decode(decode_envelope(claim.envelope).messages[0].body, Posted)
    access.close()
    # The consumer gets the bytes that the producer sent.
    assert posted.body == msgspec.Raw(b'{"b": 1,  "a": 2.50}')
    assert posted.attributes == {"specversion": "1.0", "type": "t", "source": "/s", "id": "1", "more": "m"}


@pytest.mark.more
def test_the_gateway_serves_tls_itself(gateways: Gateways, tmp_path: Path) -> None:
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(["openssl", *words, *names], cwd=tmp_path, check=True, capture_output=True)
    gateways.command(1)
    gateways.started[0].kill()
    text = (tmp_path / "gateway.toml").read_text()
    gateways.command_of("certificate = 'cert.pem'\ncertificate_key = 'key.pem'\n" + text)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))

    def status() -> int:
        connection = HTTPSConnection("localhost", gateways.port, timeout=PATIENCE_SECONDS, context=trusted)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    wait_until(lambda: status() == 200, "the gateway answers over TLS")


def test_a_producer_cannot_be_anonymous_and_known(sqlite_shop: App) -> None:
    with pytest.raises(DeclarationError, match="anonymous"):
        asgi(
            sqlite_shop,
            routes=[Route("orders", to="orders.place")],
            producers=[Producer("erp", keys=ERP.keys)],
            anonymous="erp",
        )
