"""Bringing a database's tables to this version: numbered steps, forward only, all in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from importlib import resources

from stagepost.flow.errors import SchemaMismatch, StoreUnavailable

Migration = tuple[int, str]


def migrations_of(store: str, folder_name: str = "migrations") -> list[Migration]:
    folder = resources.files(f"stagepost.store.{store}").joinpath(folder_name)
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    texts = [(int(file.name[:4]), file.read_text(encoding="utf-8")) for file in files]
    assert [number for number, _ in texts] == list(range(1, len(texts) + 1)), "migrations are numbered 1, 2, 3, …"
    return texts


def apply(
    migrations: Sequence[Migration],
    version: int,
    place: str,
    run: Callable[[str], object],
    put_meta: Callable[[str, str], object],
) -> list[int]:
    """Apply what the tables of ``version`` lack, in the transaction that is open; returns the numbers applied."""
    check_not_newer(version, len(migrations), place)
    missing = [(number, text) for number, text in migrations if number > version]
    for number, text in missing:
        run(text)
        if number == 1:
            put_meta("uuid", str(uuid.uuid4()))
        put_meta("version", str(number))
    return [number for number, _ in missing]


def check_there(version: int, place: str) -> None:
    """Raises ``StoreUnavailable`` where there are no tables."""
    if version == 0:
        raise StoreUnavailable(
            f"{place} has no tables of Stagepost: it is another database, or no worker or 'stagepost migrate' has made "
            "them yet. Check the database URL."
        )


def check_version(version: int, newest: int, place: str) -> None:
    """Raises ``SchemaMismatch`` for tables of another version."""
    check_not_newer(version, newest, place)
    if version < newest:
        raise SchemaMismatch(
            f"{place} has tables of version {version}, and this Stagepost needs {newest}. Stop its workers, then run: "
            "stagepost migrate"
        )


def check_not_newer(version: int, newest: int, place: str) -> None:
    if version > newest:
        raise SchemaMismatch(
            f"{place} has tables of version {version}, and this Stagepost knows them up to {newest}. Upgrade stagepost."
        )


def version_in(row: Sequence[object] | None) -> int:
    """Return the version that ``stagepost_meta`` has.

    Raises ``SchemaMismatch`` where somebody has changed, or removed, what the migrations write.
    """
    text = None if row is None else str(row[0])
    if text is None or not text.isdecimal():
        raise SchemaMismatch(
            f"the table stagepost_meta says that its tables are of version {text!r}, which is no number. Restore the "
            "table from a backup."
        )
    return int(text)
