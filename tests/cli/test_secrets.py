"""No command prints a password, also not one whose URL is written wrongly, and none accepts one as an argument."""

from __future__ import annotations

import pytest

from stagepost.runtime.settings import DATABASE_VARIABLE
from tests.cli.shop import command

# Nobody answers there.
URLS = [
    "postgresql://ada:ge/heim@127.0.0.1:1/shop",
    "postgresql://ada:geheim@127.0.0.1:1/shop",
    "postgresql://ada:geheim@geheim@127.0.0.1:1/shop",
    "postgresql://127.0.0.1:1/shop?user=ada&password=geheim",
    "postgresql+psycopg://ada:geheim@127.0.0.1:1/shop?password=geheim",
    "mysql://ada:ge/heim@127.0.0.1/shop",
    "postgresql://ada:geheim",
]
COMMANDS = ["status", "doctor", "migrate", "trace x", "dead list", "dead replays", "unsubscribe a b"]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_command_that_cannot_open_its_store_says_so_without_the_password(
    arguments: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, url)
    for extra in ([], ["--json"]):
        result = command(*arguments.split(), *extra)
        assert result.exit_code in (2, 3), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "heim" not in result.output


@pytest.mark.parametrize("url", URLS[:6])
def test_a_password_in_an_argument_is_refused_with_the_places_for_it(url: str) -> None:
    """Every user of the machine can list the arguments of all processes."""
    result = command("status", "--database", url)
    assert result.exit_code == 2
    assert "heim" not in result.output
    for place in ("STAGEPOST_DATABASE", "stagepost.toml", "PGPASSFILE"):
        assert place in result.output


@pytest.mark.parametrize("url", ["postgresql://ada@127.0.0.1:1/shop", "postgresql://ada:@[::1]:1/shop?passfile=x"])
def test_a_url_without_a_password_is_not_refused(url: str) -> None:
    assert command("status", "--database", url).exit_code == 3
