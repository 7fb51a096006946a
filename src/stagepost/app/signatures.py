"""Read a handler's annotations: the types of its message, state and reply."""

from __future__ import annotations

import dis
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from stagepost.flow.codec import check_record, check_state
from stagepost.flow.context import Context
from stagepost.flow.errors import DeclarationError
from stagepost.flow.texts import one_line

EXAMPLE = "def handler(ctx: Context, order: Order) -> None, or (ctx: Context, state: MyState, order: Order) -> MyReply"
# The attributes of a context that need a transaction of a database.
OF_A_DATABASE = frozenset({"sql", "connection", "session"})
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Signature:
    """The types of a handler. ``services`` are those of its keyword-only parameters, by name.

    ``database_use`` is the first of ``sql``, ``connection`` and ``session`` that its code reads of ``ctx``, if any.
    """

    message_type: type
    state_type: type | None
    reply_type: type | None
    promises_reply: bool
    is_async: bool
    services: Mapping[str, Any]
    database_use: str | None


def read_signature(place: str, handler: object, local_names: Mapping[str, Any]) -> Signature:
    """Read a handler's annotations. Raises ``DeclarationError``, with the fault and its remedy.

    ``local_names`` are the local names at the declaration, for types that are defined inside a function.
    """
    if not inspect.isfunction(handler):
        raise DeclarationError(f"the handler of {place} must be a function, not {handler!r}. Write: {EXAMPLE}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise DeclarationError(
            f"the handler of {place} yields, so calling it would run nothing. Use return, and ctx.send for more "
            "messages."
        )
    hints = _hints(place, handler, local_names)
    everything = list(inspect.signature(handler).parameters.values())
    services = [each for each in everything if each.kind is inspect.Parameter.KEYWORD_ONLY]
    parameters = [each for each in everything if each not in services]
    if any(each.kind not in POSITIONAL for each in parameters) or len(parameters) not in (2, 3):
        raise DeclarationError(
            f"the handler of {place} takes ({', '.join(map(str, everything))}); it must take the context and "
            f"the message, with the state between them where there is one. Write: {EXAMPLE}. Services of a scope "
            "follow as keyword-only parameters: *, ledger: Ledger"
        )
    context, *middle, message = parameters
    if hints.get(context.name, Context) is not Context:
        raise DeclarationError(
            f"the handler of {place} takes {context.name!r} first; the first parameter is the context. Write: {EXAMPLE}"
        )
    if middle and hints.get(middle[0].name) is Context:
        raise DeclarationError(
            f"the handler of {place} takes {context.name!r} before the context, as a method does: a handler is a plain "
            "function, outside any class."
        )
    for each in (*middle, message):
        if each.name not in hints:
            raise DeclarationError(
                f"parameter {each.name!r} of the handler of {place} has no annotation; its type is what messages are "
                f"decoded to. Write: {EXAMPLE}"
            )
    for each in services:
        if each.name not in hints or each.default is not each.empty:
            raise DeclarationError(
                f"parameter {each.name!r} of the handler of {place} is keyword-only, so its scope gives it a service: "
                "annotate it with the type of the service, without a default."
            )
    return Signature(
        message_type=check_record(f"parameter {message.name!r} of {place}", hints[message.name]),
        state_type=check_state(f"state {middle[0].name!r} of {place}", hints[middle[0].name]) if middle else None,
        reply_type=_reply_type(place, hints.get("return")),
        promises_reply=isinstance(hints.get("return"), type) and hints["return"] is not type(None),
        is_async=inspect.iscoroutinefunction(handler),
        services={each.name: hints[each.name] for each in services},
        database_use=next((read for read, _ in attributes_read(handler, context.name) if read in OF_A_DATABASE), None),
    )


def attributes_read(handler: Callable[..., Any], name: str) -> list[tuple[str, int]]:
    """Return the attributes that a handler's own code reads of a parameter, each with its line, in their order.

    Functions and comprehensions inside the handler belong to its code.
    """
    function = inspect.unwrap(handler)
    if not inspect.isfunction(function):
        # A decorator may wrap what has no code of its own.
        return []
    return sorted(_attributes_read(function.__code__, name), key=lambda read: read[1])


def _attributes_read(code: types.CodeType, name: str) -> Iterator[tuple[str, int]]:
    for loaded, read in pairwise(dis.get_instructions(code)):
        # An instruction of newer Pythons loads two names.
        names = loaded.argval if isinstance(loaded.argval, tuple) else (loaded.argval,)
        # A parameter that an inner function uses is a cell.
        is_loaded = loaded.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and names[-1] == name
        if is_loaded and read.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield read.argval, (read.positions and read.positions.lineno) or 0
    for each in code.co_consts:
        if isinstance(each, types.CodeType) and name in each.co_freevars:
            yield from _attributes_read(each, name)


def names_where_declared() -> Mapping[str, Any]:
    """Return the local names of the caller of the function that calls this."""
    frame = inspect.currentframe()
    caller = frame and frame.f_back and frame.f_back.f_back
    return caller.f_locals if caller else {}


def declared_at(handler: Callable[..., Any]) -> str:
    """Return a handler's ``file:line``. The file is relative to the working folder if it is below it."""
    code = handler.__code__
    file = Path(code.co_filename)
    if file.is_relative_to(Path.cwd()):
        file = file.relative_to(Path.cwd())
    # A file's name may contain characters that a store refuses.
    return one_line(f"{file}:{code.co_firstlineno}")


def _hints(place: str, handler: types.FunctionType, local_names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(handler, localns=dict(local_names))
    except NameError as error:
        raise DeclarationError(
            f"an annotation of the handler of {place} names {error.name!r}, which is not defined there. Define or "
            "import it above the handler, and not under `if TYPE_CHECKING`: it is needed when the program runs."
        ) from error
    except Exception as error:
        raise DeclarationError(f"the annotations of the handler of {place} cannot be read: {error}") from error


def _reply_type(place: str, declared: Any) -> type | None:
    if declared in (None, type(None), NoReturn):
        return None
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        kept = [each for each in typing.get_args(declared) if each is not type(None)]
        if len(kept) != 1:
            raise DeclarationError(
                f"the handler of {place} returns {declared}; an endpoint replies with one type. Make it one, with a "
                "field that tells the cases apart."
            )
        declared = kept[0]
    return check_record(f"the reply of {place}", declared)
