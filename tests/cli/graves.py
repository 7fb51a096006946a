"""Dead letters, and the commands about them."""

from __future__ import annotations

from click.testing import Result

from tests.cli.shop import Shop, command


def dead(shop: Shop, *arguments: str, code: int | None = None) -> Result:
    result = command("dead", *arguments, "--database", shop.url)
    assert code is None or result.exit_code == code
    return result


def ids(shop: Shop) -> dict[str, int]:
    return {kept.letter.flow_id: kept.id for kept in shop.letters()}
