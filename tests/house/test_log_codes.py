"""Each line of the log has a code, by which programs find it: ``extra={"event": …}``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.processes import ROOT

LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def test_each_line_of_the_log_has_a_code() -> None:
    without = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for call in _calls_of_loggers(ast.parse(path.read_text(encoding="utf-8")))
        if not _has_code(call)
    ]
    assert without == []


def _calls_of_loggers(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level)) if level in LEVELS:
                yield node


def _has_code(call: ast.Call) -> bool:
    extra = next((each.value for each in call.keywords if each.arg == "extra"), None)
    if not isinstance(extra, ast.Dict):
        # A name, whose dictionary is made elsewhere.
        return extra is not None
    return any(key is None or ast.unparse(key) == "'event'" for key in extra.keys)
