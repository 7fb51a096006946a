"""The configuration, the curl lines and the documents of docs/gateway.md do what the page says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagepost.gateway import hash_of_key, new_key
from stagepost.gateway.limits import Limits
from stagepost.gateway.problems import KINDS
from stagepost.testing.postgres import ServerUnavailableError
from tests.gateway.gateways import Gateways
from tests.gateway.http_calls import wait_until_alive
from tests.processes import ROOT, ProcessGroup
from tests.servers.postgres import ensure_installed

PAGE = (ROOT / "docs" / "gateway.md").read_text()


def curl() -> str:
    path = shutil.which("curl")
    if path is None:
        raise ServerUnavailableError("curl is not installed")
    return path


@pytest.fixture
def page_gateway(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """Serve the page's configuration. Yields the port and the producer's key."""
    key, group = new_key(), ProcessGroup()
    served = Gateways(f"sqlite:///{tmp_path}/shop.db", tmp_path, group)
    shop = _block("python", "# shop.py")
    (tmp_path / "shop.py").write_text(shop.replace('App("shop")', f'App("shop", database={served.url!r})'))
    text = _block("toml", "# gateway.toml").replace("sha256:…", hash_of_key(key))
    served.command_of(text.replace("127.0.0.1:8400", f"127.0.0.1:{served.port}"))
    wait_until_alive(served.port)
    yield served.port, key
    served.close()
    group.kill_all()


def _block(kind: str, part: str) -> str:
    found = [each for each in re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) if part in each]
    assert len(found) == 1, f"the page has {len(found)} blocks of {kind} with {part!r}"
    return str(found[0])


def _run(command: str, port: int, key: str) -> Any:
    ensure_installed(curl, "curl")
    command = command.replace("127.0.0.1:8400", f"127.0.0.1:{port}").replace("KEY", key).replace("curl -i", "curl -s")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_pages_configuration_and_curl_lines_store_orders_and_its_problem_is_the_one_shown(
    page_gateway: tuple[int, str],
) -> None:
    command = _block("sh", "-H 'Message-Id: order-1'")
    assert [_run(command, *page_gateway)["status"] for _ in range(2)] == ["accepted", "duplicate"]
    without_id = command.replace("-H 'Message-Id: order-1'", "")
    assert _run(without_id, *page_gateway) == json.loads(_block("json", "id-missing"))
    (in_batch,) = _run(_block("sh", "/orders/batch"), *page_gateway)["results"]
    assert (in_batch["id"], in_batch["status"]) == ("order-2", "accepted")
    looked_up = _run(_block("sh", "/orders/messages/order-1"), *page_gateway)
    assert [looked_up[each] for each in ("id", "received")] == ["order-1", 0]
    # No line of the page is left out.
    assert PAGE.count("\ncurl ") == 3


def test_the_codes_and_the_limits_of_the_page_exist() -> None:
    codes = set(re.findall(r"\b(?:400|409|422) `([a-z-]+)`", PAGE))
    assert codes
    assert codes <= set(KINDS)
    for name in Limits.__struct_fields__:
        assert f"`{name}`" in PAGE, name
