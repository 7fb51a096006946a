"""One statement a file, loaded once. A name that does not exist is a KeyError when the store's module is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources


def load(package: str) -> Mapping[str, str]:
    """Statements by file name. Comments are for readers of the files: SQLite need not parse them each time."""
    found: dict[str, str] = {}
    for file in resources.files(package).iterdir():
        if file.name.endswith(".sql"):
            lines = file.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if line.strip() and not line.lstrip().startswith("--")]
            found[file.name.removesuffix(".sql")] = "\n".join(kept)
    return found


SQL = load(__name__)
