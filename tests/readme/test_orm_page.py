"""The snippets of docs/orm.md run, in their order, and do what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import bare_environment

PAGE = (Path(__file__).parents[2] / "docs" / "orm.md").read_text()

PROOF = """
from stagepost.testing import Harness
harness = Harness(app)
print([type(each).__name__ for each in harness.drain()])
with Session(engine) as session:
    print([(sale.order_id, sale.is_paid) for sale in session.scalars(select(Sale).order_by(Sale.order_id))])
"""


def snippets(begin: str, end: str) -> list[str]:
    """The page's Python between two headings."""
    part = PAGE[PAGE.index(begin) : PAGE.index(end)]
    return [str(each) for each in re.findall(r"```python\n(.*?)```", part, re.DOTALL)]


def run(folder: Path, *parts: str) -> str:
    # Annotations are read where they are declared, so the snippets are one module.
    file = folder / "page.py"
    file.write_text("\n\n".join(parts))
    ended = subprocess.run(
        [sys.executable, str(file)], cwd=folder, env=bare_environment(), capture_output=True, text=True, check=False
    )
    if ended.returncode:
        pytest.fail(ended.stderr)
    return ended.stdout


def test_the_snippets_on_sqlalchemy_pay_a_sale(tmp_path: Path) -> None:
    parts = [
        *snippets("## A session in a handler", "## Django"),
        *snippets("## Types with validators", "## One service owns its database"),
    ]
    assert len(parts) == 5
    shown = run(tmp_path, *parts, PROOF, "print(future.result(timeout=60))").splitlines()
    sold = [("29401", True), ("29402", False), ("refund 29401", False)]
    assert shown == ["['Completed', 'Completed', 'Completed']", str(sold), "Receipt(order_id='29402')"]


def test_the_snippets_on_django_pack_a_parcel(tmp_path: Path) -> None:
    first, *_ = snippets("## A session in a handler", "### A class")
    parts = snippets("## Django", "## Types with validators")
    assert len(parts) == 2
    migrate = re.search(r"stagepost (migrate --database \S+)`", PAGE)
    assert migrate is not None
    subprocess.run([sys.executable, "-m", "stagepost", *migrate[1].split()], cwd=tmp_path, check=True)
    proof = """
from stagepost.testing import Harness
harness = Harness(shop)
print([type(each).__name__ for each in harness.drain()])
print([(parcel.order_id, parcel.is_packed) for parcel in Parcel.objects.all()])
"""
    assert run(tmp_path, first, *parts, proof).splitlines() == ["['Completed']", "[('29401', True)]"]


def test_every_snippet_of_the_page_is_run_by_one_of_the_tests_above() -> None:
    assert len(snippets("# Your own session", "## One service owns its database")) == 7
