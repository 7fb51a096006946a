"""``stagepost process`` on a real cluster: the app is shipped as users ship it, and a password is seen nowhere."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.find_spark_home import _find_spark_home

from stagepost.pipeline.failures import UNREACHABLE
from tests.pipeline.books import orders
from tests.pipeline.cluster import Cluster
from tests.pipeline.cluster_site import SLOTS, Site, books, cluster, is_over, site, succeeded
from tests.pipeline.postgres_books import PostgresBooks
from tests.pipeline.shop import STAGES
from tests.pipeline.spark_pages import pages, states, with_loops
from tests.servers.ports import reserved_port
from tests.waiting import wait_until

__all__ = ["books", "cluster", "site"]

pytestmark = [pytest.mark.more, pytest.mark.heavy]


def test_an_app_in_a_zip_runs_on_executors_and_a_password_is_seen_nowhere(
    site: Site, books: PostgresBooks, cluster: Cluster, tmp_path: Path
) -> None:
    """While a handler waits, Spark's pages are up, and say what runs. The user's settings count."""
    flows = [*orders(1, f"gate={tmp_path}/gate", name="gated"), *orders(40)]
    books.start(flows)
    port, known = reserved_port(), uuid4().hex
    settings = ("--conf", f"spark.ui.port={port}", "--conf", f"spark.a.b=c {known}")
    command = site.process("--py-files", site.zipped(), *settings)
    wait_until(partial(is_over, (tmp_path / "gate.entered").exists, command), "a handler runs")
    assert command.is_running(), command.said
    ui = f"http://127.0.0.1:{port}"
    wait_until(lambda: books.committed() >= 40 * len(STAGES), "all other messages are handled")
    rest = wait_until(partial(with_loops, ui, SLOTS), "each slot has a claim loop")
    running = [job["description"] for job in rest["jobs"] if job["status"] == "RUNNING"]
    assert [each for each in running if not re.fullmatch(r"stagepost process: \d+ claim loops", each)] == []
    assert ["spark.a.b", f"c {known}"] in rest["environment"]["sparkProperties"]
    assert rest["environment"]["sparkProperties"].count(["spark.speculation", "false"]) == 1
    seen = {url: text for start in (ui, *cluster.page_urls()) for url, text in pages(start).items()}
    assert len(seen) > 15
    seen |= (figures := {url: text for start in cluster.page_urls() for url, text in states(start).items()})
    assert len(figures) == 5, "two of the worker, and three of the master"
    assert any("stagepost process: " in text for text in seen.values())
    # The search finds a setting that is no secret.
    places = site.places_of(known)
    assert any("/events/" in each for each in places)
    assert any(each.endswith("/cmdline") for each in places)
    seen |= {name: json.dumps(answer) for name, answer in rest.items()}
    assert [name for name, text in seen.items() if site.canary in text] == []
    assert site.leaks() == []
    (tmp_path / "gate.open").touch()
    assert sum(succeeded(command).json["committed"].values()) == len(flows) * len(STAGES)
    assert books.problems(flows) == []
    assert books.proofs_of_life() == []
    assert site.leaks() == []


def test_an_app_in_an_environment_runs_on_executors(site: Site, books: PostgresBooks) -> None:
    flows = orders(10)
    books.start(flows)
    python = "spark.pyspark.python=./environment/bin/python"
    archive = f"{site.packed()}#environment"
    succeeded(site.process("--archives", archive, "--conf", python, **site.driver_alone()))
    assert books.problems(flows) == []


def test_spark_submit_runs_the_command_with_a_password_from_the_settings_file(
    site: Site, books: PostgresBooks, cluster: Cluster
) -> None:
    flows = orders(10)
    books.start(flows)
    (site.folder / "stagepost.toml").write_text(f'database = "{site.url}"\n')
    (site.folder / "run.py").write_text("from stagepost.cli.main import main\n\nmain()\n")
    submit = str(Path(_find_spark_home()) / "bin" / "spark-submit")
    options = ["--master", cluster.url, "--py-files", str(site.zipped()), "--conf", "spark.a.b=submitted"]
    words = [submit, *options, "run.py", "process", site.app, "--json"]
    answer = succeeded(site.run(words, {"PYSPARK_PYTHON": sys.executable}))
    assert sum(answer.json["committed"].values()) == len(flows) * len(STAGES)
    assert books.problems(flows) == []
    assert any('"spark.a.b":"submitted"' in text for text in cluster.texts().values())
    assert site.leaks() == []


def test_executors_without_the_module_are_told_how_to_get_it(site: Site, books: PostgresBooks) -> None:
    books.start(orders(3))
    answer = site.process(**site.driver_alone()).answer()
    assert (answer.code, answer.is_one_paragraph) == (2, True), answer.err
    assert f"cannot import the app {site.app}: No module named '{site.module[:-3]}'. Ship the app with" in answer.err
    assert "--py-files" in answer.err
    assert "--archives" in answer.err
    assert (books.waiting(), books.owners(), books.proofs_of_life()) == (3, [], [])


def test_executors_that_cannot_reach_the_database_say_so(site: Site, books: PostgresBooks) -> None:
    """The driver is told the server by its environment, which executors do not have."""
    books.start(orders(3))
    host, _, port = site.url.rpartition("@")[2].partition("/")[0].partition(":")
    user, name = site.url.partition("://")[2].partition(":")[0], site.url.rpartition("/")[2]
    environment = {"PGHOST": host, "PGPORT": port, "PGUSER": user, "STAGEPOST_DATABASE": f"postgresql:///{name}"}
    audit = site.start("audit", **environment).answer()
    assert (audit.code, audit.out, audit.is_one_paragraph) == (2, "", True), audit.err
    assert f"postgresql:///{name}: IO: [libpq] Failed to connect" in audit.err
    assert f" {UNREACHABLE}" in audit.err
    assert not re.search(r"[.?!]\.(?!\.)", audit.err.replace("...", ""))
    answer = site.process("--py-files", site.zipped(), **environment).answer()
    assert (answer.code, "Traceback" in answer.err) == (2, False), answer.err
    assert "3 rounds of tasks failed without progress: the executor on" in answer.err
    assert f"Each executor connects to postgresql:///{name} by itself. Name a host" in answer.err
    assert (books.waiting(), books.owners(), books.proofs_of_life()) == (3, [], [])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--master", "spark://127.0.0.1:1"), "Spark cannot start with the master spark://127.0.0.1:1: "),
        (("--conf", "spark.executor.memory=much"), "Spark cannot start with the master spark://"),
    ],
    ids=["master", "setting"],
)
def test_a_master_or_a_setting_that_spark_cannot_use_is_told_in_a_paragraph(
    site: Site, words: tuple[str, str], says: str
) -> None:
    """Java may have written lines of its own before."""
    answer = site.process("--py-files", site.zipped(), *words).answer()
    assert (answer.code, "Traceback" in answer.err) == (2, False), answer.err
    assert says in answer.err
    assert "Look at the address of the master" in answer.err
