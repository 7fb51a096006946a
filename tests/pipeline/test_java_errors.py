"""What Java writes to its standard error: nothing of it is printed if Spark does not start, and all of it otherwise."""

from __future__ import annotations

import os

import pytest

from stagepost.pipeline.java_errors import JavaErrors, uncaught
from tests.pipeline.commands import Commands

STACK = (
    'Exception in thread "main" org.apache.spark.SparkException: Executor memory must be a positive number\n'
    "\tat org.apache.spark.deploy.SparkSubmitArguments.error(SparkSubmitArguments.scala:670)\n"
)
NO_MACHINE = (
    "Picked up JAVA_TOOL_OPTIONS: -Da=b\n"
    "Invalid maximum heap size: -Xmxmuch\n"
    "Error: Could not create the Java Virtual Machine.\n"
    "Error: A fatal exception has occurred. Program will exit.\n"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (STACK, "Executor memory must be a positive number"),
        (NO_MACHINE + STACK, "Executor memory must be a positive number"),
        (NO_MACHINE, "Invalid maximum heap size: -Xmxmuch"),
        ('Error: A JNI error has occurred\nException in thread "main" \n', "Error: A JNI error has occurred"),
        ("", ""),
    ],
)
def test_reason_of_java_is_read_from_what_it_printed(text: str, reason: str) -> None:
    assert uncaught(text) == reason


def test_errors_of_java_are_passed_on_unless_its_start_failed(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    errors = JavaErrors(reader)
    os.write(writer, b"at the start\n")
    errors.pass_on()
    os.write(writer, b"later\n")
    os.close(writer)
    errors.wait()
    assert capfd.readouterr().err == "at the start\nlater\n"


def test_errors_of_a_java_that_did_not_start_are_its_reason_alone(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    errors = JavaErrors(reader)
    os.write(writer, STACK.encode())
    os.close(writer)
    assert errors.reason() == "Executor memory must be a positive number"
    errors.drop()
    errors.pass_on()
    assert capfd.readouterr().err == ""


@pytest.mark.more
@pytest.mark.heavy
def test_setting_that_java_refuses_is_told_in_one_paragraph(commands: Commands) -> None:
    answer = commands.start("audit", "--conf", "spark.executor.memory=much").answer()
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), answer.err
    assert ": Executor memory must be a positive number. Look at" in answer.err
