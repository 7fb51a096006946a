"""Waiting so that Ctrl-C ends it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator

import pytest

from stagepost.cli.interruption import interruptible

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
