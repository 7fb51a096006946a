"""Declare effects: read their functions' annotations, and find the effects that a handler names."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import CodeType
from typing import Any

from stagepost.app.signatures import POSITIONAL, declared_at
from stagepost.app.terms import Terms
from stagepost.flow.clock import SECONDS_MAX, is_span
from stagepost.flow.codec import check_record
from stagepost.flow.effects import Effect, OutsideFunction
from stagepost.flow.errors import DeclarationError
from stagepost.transaction.stage import DIRECT, EFFECTS_NEED

TIMEOUT_SECONDS = 30.0
SETTLE_AFTER_SECONDS = 60.0
OFFERED = ("key", "timeout")
EXAMPLE = "def capture(request: CaptureRequest, *, key: str, timeout: float) -> Capture"


def declared_effect(
    name: str,
    undo_at: str,
    call: Callable[..., Any],
    query: Callable[..., Any] | None,
    undo: Callable[..., Any] | None,
    timeout: float | timedelta,
    settle_after: float | timedelta,
    local_names: Mapping[str, Any],
) -> Effect[Any, Any]:
    """Return a declared effect. Raises ``DeclarationError``, with the fault and its remedy."""
    request_type, result_type = _read_call(f"call= of the effect {name!r}", call, local_names)
    timeout_seconds = _span(f"timeout of the effect {name!r}", timeout)
    settle_after_seconds = _span(f"settle_after of the effect {name!r}", settle_after)
    if timeout_seconds >= settle_after_seconds:
        raise DeclarationError(
            f"the effect {name!r} has timeout={timeout_seconds:g} and settle_after={settle_after_seconds:g}: the "
            "outside would be asked about a call that may still be under way. Make timeout the shorter one."
        )
    if query is not None:
        _check_query(f"query= of the effect {name!r}", query, request_type, result_type, local_names)
    if undo is not None:
        _check_undo(f"undo= of the effect {name!r}", undo, request_type, result_type, local_names)
    return Effect(
        name=name,
        request_type=request_type,
        result_type=result_type,
        call=_outside(f"call= of the effect {name!r}", call, 1),
        query=None if query is None else _outside(f"query= of the effect {name!r}", query, 1),
        undo=None if undo is None else _outside(f"undo= of the effect {name!r}", undo, 1 if result_type is None else 2),
        timeout_seconds=timeout_seconds,
        settle_after_seconds=settle_after_seconds,
        undo_at=undo_at,
        declared_at=declared_at(call),
    )


def effects_named_by(handler: Callable[..., Any]) -> tuple[Effect[Any, Any], ...]:
    """Return the effects that a handler's code names as globals or in its closure."""
    function = inspect.unwrap(handler)
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found: dict[Effect[Any, Any], None] = {}
    for name in _names_in(function.__code__):
        value = function.__globals__.get(name)
        if name in closure:
            try:
                value = closure[name].cell_contents
            except ValueError:
                # The enclosing function has not assigned it yet.
                continue
        if isinstance(value, Effect):
            found[value] = None
    return tuple(found)


def check_calls(
    address: str, place: str, effects: Sequence[Effect[Any, Any]], terms: Terms, *, has_document: bool
) -> None:
    """Check that a stage may call the effects that its handlers name. Raises ``DeclarationError``."""
    lacks = [f"batch={terms.batch}"] if terms.batch > 1 else []
    lacks += [f"mode={terms.mode!r}"] if terms.mode in DIRECT else []
    lacks += ["a business key"] if terms.key else []
    lacks += ["a document"] if has_document else []
    if effects and lacks:
        raise DeclarationError(
            f"{address} ({place}) calls the effect {effects[0].name}, and it has {' and '.join(lacks)}. {EFFECTS_NEED}"
        )


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)


def _read_call(place: str, call: Callable[..., Any], local_names: Mapping[str, Any]) -> tuple[type, type | None]:
    """Return the types of request and result."""
    hints, names = _read(place, call, local_names)
    if not names or names[0] not in hints:
        raise DeclarationError(f"{place} must take the request, with its type annotated. Write: {EXAMPLE}")
    if "return" not in hints:
        raise DeclarationError(
            f"{place} has no return annotation, and its result is kept and decoded as that type. Write: {EXAMPLE}, or "
            "-> None for a call without a result."
        )
    request_type = check_record(f"the request of {place}", hints[names[0]])
    if hints["return"] is type(None):
        return request_type, None
    return request_type, check_record(f"the result of {place}", hints["return"])


def _check_query(
    place: str, query: Callable[..., Any], request: type, result: type | None, local_names: Mapping[str, Any]
) -> None:
    hints, names = _read(place, query, local_names)
    if result is None:
        raise DeclarationError(
            f"{place} finds the result of an earlier call, and call= returns None. Let both return what tells that it "
            "was done, such as the id that the outside gave."
        )
    found = typing.get_args(hints.get("return"))
    if not names or hints.get(names[0]) is not request or set(found) != {result, type(None)}:
        raise DeclarationError(
            f"{place} must take the request of call= and return its result, or None where the outside has none. "
            f"Write: def find(request: {request.__name__}, *, key: str) -> {result.__name__} | None"
        )


def _check_undo(
    place: str, undo: Callable[..., Any], request: type, result: type | None, local_names: Mapping[str, Any]
) -> None:
    hints, names = _read(place, undo, local_names)
    wanted = [request] if result is None else [request, result]
    if [hints.get(each) for each in names[: len(wanted)]] != wanted:
        given = ", ".join(f"{each.__name__.lower()}: {each.__name__}" for each in wanted)
        raise DeclarationError(
            f"{place} must take the request and the result of the call that it undoes. Write: def undo({given}, *, "
            "key: str) -> None"
        )


def _read(place: str, function: Any, local_names: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the annotations, and the names of the positional parameters."""
    if not inspect.isfunction(function):
        raise DeclarationError(f"{place} must be a function, not {function!r:.100}. Write: {EXAMPLE}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise DeclarationError(
            f"{place} is `async def` or yields; it must be a plain function, which returns when the call is over. "
            f"Write: {EXAMPLE}"
        )
    try:
        hints = typing.get_type_hints(function, localns=dict(local_names))
    except Exception as error:
        raise DeclarationError(f"the annotations of {place} cannot be read: {error}") from error
    parameters = inspect.signature(function).parameters.values()
    return hints, [each.name for each in parameters if each.kind in POSITIONAL and each.name not in OFFERED]


def _outside(place: str, function: Callable[..., Any], given: int) -> OutsideFunction:
    """Wrap a user's function, which is called with ``given`` positional arguments."""
    parameters = list(inspect.signature(function).parameters.values())
    takes = {each.name for each in parameters if each.name in OFFERED}
    others = [each for each in parameters if each.name not in OFFERED and each.default is each.empty]
    if len(others) != given or any(each.kind not in POSITIONAL for each in others):
        raise DeclarationError(
            f"{place} takes ({', '.join(map(str, parameters))}); beside {given} arguments it may take key (the "
            f"Idempotency-Key for the outside) and timeout (seconds). Write: {EXAMPLE}"
        )
    return OutsideFunction(function, frozenset(takes))


def _span(what: str, value: float | timedelta) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_span(seconds) or not seconds:
        raise DeclarationError(
            f"{what} must be a number of seconds above 0, at most {SECONDS_MAX:.0f}, or a timedelta, not {value!r}"
        )
    return float(seconds)
