"""How large the source is, in statements: ``python -m tests.house.counting [FOLDER]``.

A Python statement is an ``ast.stmt`` that is no docstring. An SQL statement is a ``.sql`` file below a folder
``statements``, or a string in a ``.py`` file that begins with an SQL verb; an f-string counts once.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
SQL = re.compile(
    r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH|CREATE|ALTER|DROP|BEGIN|START TRANSACTION|COMMIT|ROLLBACK"
    r"|SAVEPOINT|RELEASE|PREPARE TRANSACTION|PRAGMA|SET|RESET|DISCARD|DEALLOCATE|LOCK|NOTIFY|LISTEN|UNLISTEN|COPY"
    r"|VACUUM|ANALYZE|EXPLAIN|VALUES|SHOW|ATTACH|DETACH)\b(?=[ ;(]|$)"
)


@dataclass(frozen=True)
class Size:
    files: int
    python: int
    sql_files: int
    sql_strings: int

    def __str__(self) -> str:
        sql = self.sql_files + self.sql_strings
        return (
            f"{self.files} Python files, {self.python} Python statements, "
            f"{sql} SQL statements ({self.sql_files} files and {self.sql_strings} strings)"
        )


def size_of(source: Path) -> Size:
    trees = [ast.parse(file.read_bytes()) for file in sorted(source.rglob("*.py"))]
    return Size(
        files=len(trees),
        python=sum(1 for tree in trees for node in ast.walk(tree) if isinstance(node, ast.stmt))
        - sum(1 for tree in trees for _ in docstrings(tree)),
        sql_files=sum(1 for file in source.rglob("*.sql") if file.parent.name == "statements"),
        sql_strings=sum(1 for tree in trees for text in strings(tree) if SQL.match(text)),
    )


def docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            match node.body[0]:
                case ast.Expr(ast.Constant(str())) as first:
                    yield first


def strings(tree: ast.Module) -> Iterator[str]:
    """The text of each string, and of an f-string what comes before its first value."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inside |= {id(each.value) for each in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            first = node.values[0] if node.values else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def main() -> None:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE
    print(size_of(source))  # noqa: T201 - it is what the command is for


if __name__ == "__main__":
    main()
