"""The user's settings of Spark: which are accepted, which are refused with a remedy, and which Java is told early."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.session import _default
from stagepost.pipeline.spark_options import SparkOptions


def read(*settings: str, master: str | None = None, py_files: str = "", archives: str = "") -> SparkOptions:
    return SparkOptions.read(master, settings, [py_files], [archives])


def test_settings_are_read_as_spark_submit_reads_them() -> None:
    found = read("spark.executor.memory=4g", "spark.executor.extraJavaOptions=-Da=b -Dc=d", master="spark://a:7077")
    assert found.settings == {"spark.executor.memory": "4g", "spark.executor.extraJavaOptions": "-Da=b -Dc=d"}
    assert (found.master, found.py_files, found.archives) == ("spark://a:7077", [], [])


def test_the_last_value_of_a_setting_counts() -> None:
    assert read("spark.executor.memory=1g", "spark.executor.memory=2g").settings == {"spark.executor.memory": "2g"}


def test_the_master_may_be_a_setting_and_the_option_takes_precedence() -> None:
    assert read("spark.master=spark://a:1") == SparkOptions("spark://a:1", {}, [], [])
    assert read("spark.master=spark://a:1", master="local[2]").master == "local[2]"


@pytest.mark.parametrize(
    "text",
    ["yarn", "local", "local[*]", "local[4, 2]", "local-cluster[2,1,1024]", "spark://a:1,b:1", "k8s://https://a"],
)
def test_each_master_that_spark_knows_is_taken(text: str) -> None:
    assert read(master=text).master == text


@pytest.mark.parametrize("text", ["nonsense", "host:7077", "spark://", "local[2", "local[zz]"])
def test_a_text_that_is_no_master_is_refused(text: str) -> None:
    says = r"--master .* is no address of a master\. Name one such as spark://host:7077, yarn, k8s://"
    with pytest.raises(DeclarationError, match=says):
        read(master=text)
    with pytest.raises(DeclarationError, match=says):
        read(f"spark.master={text}")


@pytest.mark.parametrize(
    "text",
    [
        "yarn",
        "local",
        "local[4,8]",
        "local[*,8]",
        "local-cluster[2,1,1024]",
        "spark://a:7077,b:7077",
        "k8s://https://a:1",
    ],
)
def test_each_kind_of_master_is_accepted(text: str) -> None:
    assert read(master=text).master == text


@pytest.mark.parametrize("text", ["executor.memory=4g", "spark.executor.memory", "", "=4g"])
def test_a_text_that_is_no_setting_of_spark_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match=r"--conf takes spark\.name=value, such as spark\.executor\.memory=4g"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "spark.authenticate.secret=geheim",
        "spark.ssl.keyPassword=geheim",
        "spark.executorEnv.PGPASSWORD=geheim",
        "spark.hadoop.fs.s3a.access.key=geheim",
        "spark.hadoop.fs.azure.account.key.x.net=geheim",
        "spark.executor.extraJavaOptions=-Djavax.net.ssl.trustStorePassword=geheim",
        "spark.executorEnv.STAGEPOST_DATABASE=postgresql://ada:geheim@db/shop",
        "spark.executorEnv.STAGEPOST_DATABASE=postgresql://db/shop?user=ada&password=geheim",
    ],
)
def test_a_secret_in_a_setting_is_refused_with_the_places_for_it(text: str) -> None:
    with pytest.raises(DeclarationError, match=r"SPARK_CONF_DIR|variable STAGEPOST_DATABASE") as error:
        read(text)
    assert "geheim" not in str(error.value)
    assert text.partition("=")[0] in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "spark.kubernetes.executor.secretKeyRef.PGPASSWORD=shop:password",
        "spark.kubernetes.driver.secrets.shop=/etc/shop",
        "spark.kubernetes.authenticate.submission.oauthTokenFile=/run/token",
        "spark.executorEnv.STAGEPOST_DATABASE=postgresql://ada@db/shop",
        "spark.executorEnv.PGPASSFILE=/etc/shop/passwords",
    ],
)
def test_the_name_of_a_secret_or_of_its_file_is_accepted(text: str) -> None:
    name, _, value = text.partition("=")
    assert read(text).settings == {name: value}


@pytest.mark.parametrize("value", ["true", "TRUE"])
def test_a_setting_on_which_answers_depend_cannot_be_changed(value: str) -> None:
    with pytest.raises(
        DeclarationError, match=rf"--conf spark\.speculation={value} cannot be used: Stagepost needs fa"
    ):
        read(f"spark.speculation={value}")


@pytest.mark.parametrize("value", ["false", "False"])
def test_a_setting_on_which_answers_depend_may_be_named(value: str) -> None:
    assert read(f"spark.speculation={value}").settings == {"spark.speculation": value}


def test_files_are_named_with_commas_or_one_by_one_and_must_exist(tmp_path: Path) -> None:
    for name in ("a.py", "b.zip", "env.tar.gz"):
        (tmp_path / name).touch()
    a, b, env = (str(tmp_path / name) for name in ("a.py", "b.zip", "env.tar.gz"))
    found = SparkOptions.read(None, (), [f"{a}, {b}", "s3a://bucket/c.zip"], [f"{env}#environment"])
    assert found.py_files == [a, b, "s3a://bucket/c.zip"]
    assert found.archives == [f"{env}#environment"]
    with pytest.raises(DeclarationError, match=r"--py-files: there is no file '/no/such\.zip'"):
        read(py_files=f"{a},/no/such.zip")
    with pytest.raises(DeclarationError, match=r"--archives: there is no file '/no/such\.tar'"):
        read(archives="/no/such.tar#environment")


def test_a_password_in_the_address_of_a_file_is_refused() -> None:
    with pytest.raises(DeclarationError, match="--py-files: an address contains a password") as caught:
        read(py_files="https://ada:geheim@files/shop.zip")
    assert "geheim" not in str(caught.value)


def test_the_driver_imports_from_the_files_that_executors_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    with ZipFile(tmp_path / "zipped.zip", "w") as packed:
        packed.writestr("in_a_zip.py", "VALUE = 1")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "in_a_file.py").write_text("VALUE = 2")
    before = len(sys.path)
    options = read(py_files=f"{tmp_path}/zipped.zip,{tmp_path}/folder/in_a_file.py,s3a://bucket/c.zip")
    options.put_on_path()
    options.put_on_path()
    assert len(sys.path) == before + 2
    assert (__import__("in_a_zip").VALUE, __import__("in_a_file").VALUE) == (1, 2)


@pytest.mark.parametrize(
    ("text", "master"),
    [
        ("spark.master spark://a:7077\n", "spark://a:7077"),
        ("# spark.master yarn\n\n  spark.master=k8s://https://a:6443\nspark.master.rest.enabled true\n", "k8s://https://a:6443"),
        ("spark.master yarn\nspark.master local[4]", "local[4]"),
        ("spark.executor.memory 4g", None),
    ],
)  # fmt: skip
def test_the_master_of_the_defaults_is_known_before_java_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, master: str | None
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert _default("spark.master") is None
    (tmp_path / "spark-defaults.conf").write_text(text)
    assert _default("spark.master") == master
