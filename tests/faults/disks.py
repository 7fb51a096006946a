"""Disks that are small enough to be filled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str, inodes: int) -> Iterator[Path]:
    folder.mkdir()
    try:
        options = f"size={size},nr_inodes={inodes}"
        mount = ["mount", "-t", "tmpfs", "-o", options, "stagepost-test", str(folder)]
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small disk cannot be mounted here: {error}")
    try:
        yield folder
    finally:
        # Lazily: what a killed process had open is let go in its own time.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    filler = disk / "filler"
    more: list[Path] = []
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    try:
        while True:
            more.append(disk / f"filler{len(more)}")
            more[-1].touch()
    except OSError:
        pass
    try:
        yield
    finally:
        for each in (filler, *more):
            each.unlink(missing_ok=True)
