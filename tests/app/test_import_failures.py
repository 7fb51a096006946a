"""An app's module that cannot be imported: told in the user's own lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stagepost import DeclarationError
from stagepost.app.loading import load_app

DECLARED_WRONGLY = """
from stagepost import App
app = App("shop")
@app.endpoint("shop.pay")
def pay(ctx, order): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def failure(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    with pytest.raises(DeclarationError) as caught:
        load_app(f"{name}:app", folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "line", "error"),
    [
        ("divides", "x = 1\n1 / 0\n", 'divides.py", line 2', "ZeroDivisionError: division by zero"),
        ("misses", "import gone_for_good\n", 'misses.py", line 1', "No module named 'gone_for_good'"),
        ("breaks", "def x(:\n", 'breaks.py", line 1', "SyntaxError"),
        ("leaves", "import sys\nsys.exit('no licence')\n", 'leaves.py", line 2', "SystemExit: no licence"),
        ("misuses", "from stagepost import App\nApp('x', colour=3)\n", 'misuses.py", line 2', "colour"),
    ],
)
def test_what_the_module_raises_is_told_from_its_own_lines_on(
    name: str, text: str, line: str, error: str, folder: Path
) -> None:
    told = failure(folder, name, text)
    assert told.startswith(f"importing {name} failed:")
    assert line in told
    assert error in told.splitlines()[-1]
    assert "importlib" not in told
    assert "loading.py" not in told


def test_a_declaration_that_is_wrong_is_told_with_its_place(folder: Path) -> None:
    told = failure(folder, "declares", DECLARED_WRONGLY)
    assert "parameter 'order' of the handler of shop.pay" in told
    assert told.endswith(f"(at {folder}/declares.py:4)")
