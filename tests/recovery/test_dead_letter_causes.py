"""What a dead letter says about its death: the chain of causes, the stack, and a fingerprint that groups."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from stagepost import IllegalCall
from stagepost.flow import codec
from stagepost.ports.dead_letters import Cause
from stagepost.recovery.deadletter import (
    CHAIN_LENGTH_MAX,
    MESSAGE_LENGTH_MAX,
    STACK_LENGTH_MAX,
    causes_of,
    fingerprint,
    stack_of,
)


class OwnError(Exception):
    pass


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - what was raised is what is tested
        return error
    raise AssertionError("it was to raise")


# Causes


def test_the_chain_of_causes_is_told_outermost_first() -> None:
    def fail() -> None:
        try:
            try:
                int("x")
            except ValueError as error:
                raise KeyError("key") from error
        except KeyError as error:
            raise OwnError("outer") from error

    assert [(each.type, each.message) for each in causes_of(caught(fail))] == [
        (f"{__name__}.OwnError", "outer"),
        ("KeyError", "'key'"),
        ("ValueError", "invalid literal for int() with base 10: 'x'"),
    ]


def test_what_went_wrong_while_an_error_was_handled_tells_of_both() -> None:
    def fail() -> None:
        try:
            int("x")
        except ValueError:
            raise OwnError("while handling")  # noqa: B904 - without a cause, on purpose

    assert [each.type for each in causes_of(caught(fail))] == [f"{__name__}.OwnError", "ValueError"]


def test_a_context_that_was_suppressed_is_not_told() -> None:
    def fail() -> None:
        try:
            int("x")
        except ValueError:
            raise OwnError("alone") from None

    assert [each.type for each in causes_of(caught(fail))] == [f"{__name__}.OwnError"]


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert [each.message for each in causes_of(first)] == ["first", "second"]


def test_a_chain_and_a_text_without_end_are_cut() -> None:
    error = ValueError("x" * 1_000_000)
    for _ in range(100):
        outer = ValueError("x" * 1_000_000)
        outer.__cause__ = error
        error = outer
    causes = causes_of(error)
    assert len(causes) == CHAIN_LENGTH_MAX
    assert {len(each.message) for each in causes} == {MESSAGE_LENGTH_MAX}


def test_an_error_whose_text_cannot_be_printed_is_told_all_the_same() -> None:
    (cause,) = causes_of(UnprintableError())
    assert cause == Cause(f"{__name__}.UnprintableError", "(its text cannot be printed: RuntimeError)")
    assert "UnprintableError" in stack_of(UnprintableError())


@given(st.text(), st.text("abc. ", min_size=1))
def test_a_cause_is_described_in_one_line(message: str, name: str) -> None:
    described = Cause(name, message).summary
    assert len(described.splitlines()) == len(name.splitlines())
    assert described.startswith(name)


def test_a_description_is_the_type_and_the_first_line() -> None:
    assert Cause("ValueError", "first\nsecond").summary == "ValueError: first"
    assert Cause("ValueError", "").summary == "ValueError"


# The stack


def test_the_stack_begins_with_the_handler_and_not_with_the_framework() -> None:
    def handler() -> None:
        codec.check_record("the message", str)

    text = stack_of(caught(handler))
    assert text.startswith("Traceback (most recent call last):")
    assert "in handler" in text
    assert "DeclarationError" in text.splitlines()[-1]


def test_a_stack_without_end_is_cut_in_the_middle() -> None:
    error = caught(lambda: exec("raise ValueError('y' * 100_000)"))
    text = stack_of(error)
    assert STACK_LENGTH_MAX <= len(text) <= STACK_LENGTH_MAX + 10
    assert text.startswith("Traceback")
    assert "\n…\n" in text
    assert text.rstrip().endswith("y")


def test_an_error_that_was_never_raised_has_a_stack_and_a_fingerprint_too() -> None:
    assert stack_of(ValueError("x")) == "ValueError: x\n"
    assert re.fullmatch("[0-9a-f]{12}", fingerprint(ValueError("x"), "pay"))


# The fingerprint


def compiled(source: str, *, name: str = "shop.pay", lines_above: int = 0) -> Callable[..., object]:
    """A module of the user's, from its source."""
    namespace: dict[str, object] = {"__name__": name, "OwnError": OwnError}
    exec(compile("\n" * lines_above + source, f"/srv/{name}.py", "exec"), namespace)
    handler = namespace["handler"]
    assert callable(handler)
    return handler


SOURCE = """
def handler(value):
    check(value)

def check(value):
    raise ValueError(value)
"""


def print_of(source: str = SOURCE, value: object = 1, **options: object) -> str:
    handler = compiled(source, **options)  # type: ignore[arg-type]
    return fingerprint(caught(lambda: handler(value)), "pay")


def test_the_same_failure_at_the_same_place_has_the_same_fingerprint_whatever_it_was_given() -> None:
    assert print_of(value=1) == print_of(value="another value")
    assert re.fullmatch("[0-9a-f]{12}", print_of())


def test_what_was_raised_in_no_code_of_the_users_is_another_kind_at_each_stage() -> None:
    assert fingerprint(ValueError("x"), "pay") != fingerprint(ValueError("x"), "ship")
    assert fingerprint(ValueError("x"), "pay") == fingerprint(ValueError("y"), "pay")


def test_lines_that_shifted_and_a_file_that_moved_change_no_fingerprint() -> None:
    assert print_of(lines_above=70) == print_of()
    assert print_of(SOURCE.replace("    check(value)", "    value = value\n\n    check(value)")) == print_of()


def test_another_type_another_function_or_another_module_is_another_failure() -> None:
    prints = [
        print_of(),
        print_of(SOURCE.replace("ValueError", "KeyError")),
        print_of(SOURCE.replace("ValueError", "OwnError")),
        print_of(SOURCE.replace("check", "verify")),
        print_of(SOURCE.replace("    check(value)", "    raise ValueError(value)")),
        print_of(name="shop.ship"),
    ]
    assert len(set(prints)) == len(prints)


def test_two_methods_of_the_same_name_are_told_apart() -> None:
    source = "class {name}:\n    def run(self): raise ValueError\ndef handler(value): {name}().run()"
    assert print_of(source.format(name="Pay")) != print_of(source.format(name="Ship"))


def test_the_frames_of_the_framework_above_the_handler_change_no_fingerprint() -> None:
    handler = compiled("def handler(): raise ValueError")

    def through_the_framework(depth: int) -> None:
        framework = compiled(
            "def handler(call, depth):\n    handler(call, depth - 1) if depth else call()",
            name="stagepost.transaction.handling",
        )
        framework(handler, depth)

    frames = {fingerprint(error_of_framework(through_the_framework, depth), "pay") for depth in (1, 5)}
    assert len(frames) == 1


def error_of_framework(call: Callable[[int], None], depth: int) -> BaseException:
    """As the transaction sees it: its own frames come first."""
    error = caught(lambda: call(depth))
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals["__name__"] == __name__:
        trace = trace.tb_next
    return error.with_traceback(trace)


def test_an_error_that_stagepost_raises_for_the_handler_is_placed_at_the_handler() -> None:
    source = "def handler(call):\n    call()"

    def illegal() -> None:
        raise IllegalCall("no")

    assert print_of(source, illegal) == print_of(source, illegal)
    assert print_of(source, illegal) != print_of(source, illegal, name="shop.ship")


def test_telling_of_an_error_changes_nothing_about_it() -> None:
    error = caught(lambda: int("x"))
    before = traceback.format_exception(error)
    causes_of(error)
    stack_of(error)
    fingerprint(error, "pay")
    with suppress(ValueError):
        raise error
    assert traceback.format_exception(error)[-1] == before[-1]
