"""A KeyboardInterrupt at each place of our code where CPython delivers a signal.

CPython 3.11 looks for signals at a function's entry, after a call and at a backward jump (``ceval.c``: RESUME, CALL,
JUMP_BACKWARD). A profile function and a trace function of opcodes see these places. They count them, and raise at one.
"""

from __future__ import annotations

import dis
import inspect
import sys
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

import stagepost

OURS = str(Path(stagepost.__file__).parent)
CALLS = {dis.opmap["CALL"], dis.opmap["CALL_FUNCTION_EX"]}
JUMPS_BACK = {number for name, number in dis.opmap.items() if name.startswith(("JUMP_BACKWARD", "POP_JUMP_BACKWARD"))}
GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class InterruptedAt:
    """``with InterruptedAt(n):`` raises at the n-th place, counted from 0. With a second number it raises once more,
    so many places later: in the midst of what the first one set off. Without any it only counts.

    ``places`` is how many were passed, ``where`` says where it raised.
    """

    def __init__(self, first: int | None = None, then: int | None = None) -> None:
        self._wanted = first
        self._then = then
        self.places = 0
        self.where = ""

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        sys.settrace(None)

    # Python forgets the function that raises, and keeps the other one, which brings it back.

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if sys.gettrace() is None:
            sys.settrace(self._trace)
        match event:
            case "call" if _is_ours(frame) and _is_call(frame):
                self._pass(frame, "entry")
            case "return" if _has_called(frame.f_back) and _is_call(frame):
                self._pass(frame, "return")
            case "c_return" if _has_called(frame):
                self._pass(frame, f"after {getattr(argument, '__name__', argument)}")

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not _is_ours(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._trace_opcodes

    def _trace_opcodes(self, frame: FrameType, event: str, argument: Any) -> Any:
        if sys.getprofile() is None:
            sys.setprofile(self._profile)
        if event == "opcode" and _opcode(frame) in JUMPS_BACK:
            self._pass(frame, "jump back")
        return self._trace_opcodes

    def _pass(self, frame: FrameType, what: str) -> None:
        self.places += 1
        if self.places - 1 != self._wanted:
            return
        place = frame.f_code.co_filename.removeprefix(OURS)
        self.where += f"{what} of {frame.f_code.co_qualname}, {place}:{frame.f_lineno}; "
        if self._then is None:
            self._wanted = None
            sys.setprofile(None)
            sys.settrace(None)
        else:
            self._wanted, self._then = self.places + self._then, None
        raise KeyboardInterrupt(self.where)


def _is_call(frame: FrameType) -> bool:
    """Generators come and go without one, and so do finalizers and the callbacks of weak references."""
    return not frame.f_code.co_flags & GENERATORS and frame.f_code.co_name not in ("__del__", "_remove")


def _is_ours(frame: FrameType | None) -> bool:
    return frame is not None and _is_code_ours(frame.f_code)


def _is_code_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(OURS)


def _has_called(frame: FrameType | None) -> bool:
    return frame is not None and _is_code_ours(frame.f_code) and _opcode(frame) in CALLS


def _opcode(frame: FrameType) -> int:
    return frame.f_code.co_code[frame.f_lasti]
