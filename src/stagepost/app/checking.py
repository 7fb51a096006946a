"""Check an app's handlers for what works and is costly. No check runs a handler or opens a database."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stagepost.app.signatures import attributes_read
from stagepost.transaction.stage import Stage

# Each of these begins the stage's transaction.
DATABASE = ("sql", "connection", "session")


def advice_on(stages: Mapping[str, Stage]) -> Iterator[str]:
    """Yield a sentence with its remedy for each handler that calls an effect within its transaction.

    The lines of a handler's own code are compared, so a call in a helper or in a loop may be missed.
    """
    for address, stage in stages.items():
        for handler in stage.handlers:
            if not inspect.isfunction(inspect.unwrap(handler.function)):
                # The stage that undoes an effect has a function of Stagepost's own.
                continue
            found = _effect_after_database(handler.function)
            if found is not None:
                effect, database = found
                yield (
                    f"{address} ({stage.declared_at}) calls an effect in line {effect}, and line {database} has begun "
                    "its transaction before. While the call runs, the transaction keeps its connection, and on SQLite "
                    "every other writer waits. Call the effect first."
                )


def _effect_after_database(function: Callable[..., Any]) -> tuple[int, int] | None:
    """Return the lines of the first such call, and of the first use of the database."""
    handler = inspect.unwrap(function)
    context = next(iter(inspect.signature(handler).parameters))
    database = None
    for attribute, line in attributes_read(handler, context):
        if attribute in DATABASE:
            database = database or line
        elif attribute == "effect" and database is not None:
            return line, database
    return None
