"""``make`` sets itself up behind a company's own certificate authority: it trusts what the system trusts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What the tests' own surroundings may say about certificates, and make to a make below it.
OTHERS = ("UV_", "PIP_", "SSL_", "REQUESTS_", "CURL_", "MAKE")
# Stands for the python of the machine, and for that of the environment it makes. It writes down what pip is given.
PYTHON = """#!/bin/sh
case "$1 $2" in
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip") env > "$SEEN" ;;
    *) exec "$REAL" "$@" ;;
esac
"""


def made(folder: Path, *arguments: str, **environment: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
    given = clean | {"SEEN": str(folder / "seen"), "REAL": sys.executable} | environment
    subprocess.run(["make", "--silent", *arguments], cwd=ROOT, env=given, check=True, capture_output=True)


def seen(folder: Path) -> dict[str, str]:
    lines = (folder / "seen").read_text().splitlines()
    return {name: value for name, is_one, value in (line.partition("=") for line in lines) if is_one}


def bootstrapped(folder: Path, **environment: str) -> dict[str, str]:
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    made(folder, f"VENV={folder}/venv", f"PYTHON={python}", f"{folder}/venv/bin/uv", **environment)
    return seen(folder)


def recipes(folder: Path, **environment: str) -> dict[str, str]:
    """The environment of every recipe of the Makefile."""
    rules = folder / "rules.mk"
    rules.write_text('tell:\n\tenv > "$$SEEN"\n')
    made(folder, "--file", "Makefile", "--file", str(rules), "tell", **environment)
    return seen(folder)


def test_uv_trusts_what_the_system_trusts_unless_it_is_said(tmp_path: Path) -> None:
    found = recipes(tmp_path)
    assert (found["UV_SYSTEM_CERTS"], found["UV_NATIVE_TLS"]) == ("true", "true")
    found = recipes(tmp_path, UV_SYSTEM_CERTS="false")
    assert (found["UV_SYSTEM_CERTS"], found["UV_NATIVE_TLS"]) == ("false", "false")


def test_pip_trusts_what_the_system_trusts_unless_it_is_said(tmp_path: Path) -> None:
    bundle, another = tmp_path / "company.pem", tmp_path / "another.pem"
    bundle.touch()
    assert bootstrapped(tmp_path, SSL_CERT_FILE=str(bundle))["REQUESTS_CA_BUNDLE"] == str(bundle)
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        (tmp_path / "venv" / "bin" / "uv").unlink()
        found = bootstrapped(tmp_path, SSL_CERT_FILE=str(bundle), **{variable: str(another)})
        assert found["REQUESTS_CA_BUNDLE"] == str(another)


@pytest.mark.parametrize("has_some", [True, False])
def test_a_folder_of_certificates_is_taken_where_there_is_no_file_and_only_where_it_holds_some(
    tmp_path: Path, has_some: bool
) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    if has_some:
        (folder / "1a2b3c4d.0").touch()
    found = bootstrapped(tmp_path, SSL_CERT_FILE=str(tmp_path / "none"), SSL_CERT_DIR=str(folder))
    assert found["REQUESTS_CA_BUNDLE"] == (str(folder) if has_some else "")
