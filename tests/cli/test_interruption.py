"""Waiting so that Ctrl-C ends it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count

import click
import pytest
from click.testing import CliRunner

from stagepost.cli.interruption import Stopped, StopRequest, interruptible, stoppable
from stagepost.cli.main import COMMANDS, main
from stagepost.cli.spark import run_job
from stagepost.flow.errors import DeclarationError
from tests.waiting import PATIENCE_SECONDS

# What select() can be asked about ends here.
SELECT_MAX = 1024


@pytest.fixture
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= SELECT_MAX + 100:
        pytest.skip(f"a process may open no more than {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, SELECT_MAX + 200), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] < SELECT_MAX:
        opened.append(os.dup(opened[0]))
    yield
    for each in opened:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
def test_a_process_with_many_open_files_waits_too() -> None:
    with interruptible() as patience:
        assert patience.wait(0)
        os.kill(os.getpid(), signal.SIGINT)
        assert not patience.wait(0)


def test_no_wait_is_too_long_to_be_broken_off() -> None:
    with interruptible() as patience:
        os.kill(os.getpid(), signal.SIGINT)
        assert not patience.wait(1e12)


def exit_code(work: Callable[[StopRequest], object]) -> int:
    try:
        with stoppable() as request:
            work(request)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_a_request_that_is_answered_at_once_and_ends_with_its_exit_code(
    capfd: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    def work(request: StopRequest) -> None:
        os.kill(os.getpid(), number)
        assert capfd.readouterr().err == "interrupted, stopping; a second signal ends the command at once\n"
        with pytest.raises(Stopped):
            request.check()

    before = signal.getsignal(number)
    assert exit_code(lambda request: request.check()) == 0
    assert exit_code(work) == code
    assert signal.getsignal(number) is before


def test_what_the_work_raises_because_it_was_broken_off_is_not_said() -> None:
    def work(request: StopRequest) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise DeclarationError("job cancelled")

    assert exit_code(work) == 130
    with pytest.raises(DeclarationError), stoppable():
        raise DeclarationError("not broken off")


def test_a_second_signal_ends_the_process_as_it_stands() -> None:
    script = (
        "import os, signal, time\nfrom stagepost.cli.interruption import stoppable\n"
        "with stoppable():\n    os.kill(os.getpid(), signal.SIGTERM)\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('too late', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (130, "", 1)


def test_ctrl_c_is_ignored_by_a_command_that_a_shell_runs_in_the_background() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stoppable() as request:
            os.kill(os.getpid(), signal.SIGINT)
            assert request.signal is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_work_is_told_to_stop_until_it_has_ended() -> None:
    told = threading.Semaphore(0)

    def work() -> str:
        for _ in range(3):
            assert told.acquire(timeout=PATIENCE_SECONDS)
        raise DeclarationError("cancelled")

    looks = count()

    def look() -> None:
        if next(looks) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    assert exit_code(lambda request: run_job(work, request, told.release, look)) == 130
    with pytest.raises(DeclarationError):
        run_job(work_that_fails, StopRequest(), told.release)


def work_that_fails() -> None:
    raise DeclarationError("not told to stop")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_ctrl_c_has_one_exit_code_and_one_line_in_every_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes; a command that is a group of commands is one too."""

    def interrupted(context: click.Context) -> None:
        raise KeyboardInterrupt

    command = main.get_command(click.Context(main), name)
    monkeypatch.setattr(command, "invoke", interrupted)
    monkeypatch.setattr(command, "make_context", lambda *_, **__: click.Context(command or main))
    done = CliRunner().invoke(main, [name])
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted\n")
