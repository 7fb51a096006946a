"""No command prints a password, also not one whose URL is written wrongly."""

from __future__ import annotations

import pytest

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
def test_a_command_that_cannot_open_its_store_says_so_without_the_password(arguments: str, url: str) -> None:
    for extra in ([], ["--json"]):
        result = command(*arguments.split(), "--database", url, *extra)
        assert result.exit_code in (2, 3), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "heim" not in result.output
