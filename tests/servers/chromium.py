"""A real Chromium without a window, from Debian's package, which opens a page of this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from stagepost.testing.postgres import ServerUnavailableError
from tests.servers.postgres import ensure_installed

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
SECONDS_MAX = 240
# Chromium asks these hosts for updates and for the time, whatever page is open.
OWN = re.compile(r"\b(?:update\.googleapis|[\w-]+\.google|www\.gstatic|[\w.-]+\.gvt1)\.com\b")


class Visit(NamedTuple):
    """A page after it was opened: its elements, and the requests that the browser made for it."""

    dom: str
    requests: list[str]


def visit(page: Path, folder: Path) -> Visit:
    """Open the page. All requests go to a proxy here, which notes and refuses them."""
    ensure_installed(found, "chromium")
    with recording_proxy() as (port, requests):
        words = [
            *(found(), *QUIET, f"--user-data-dir={folder / 'profile'}"),
            *(f"--proxy-server=http://127.0.0.1:{port}", "--proxy-bypass-list=<-loopback>"),
            *("--dump-dom", page.as_uri()),
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MAX, check=True)
        return Visit(done.stdout, [each for each in requests if not OWN.search(each)])


def found() -> str:
    """Raises ``ServerUnavailableError``."""
    path = shutil.which("chromium")
    if path is None:
        raise ServerUnavailableError("Chromium is not installed: install the package chromium")
    return path


@contextmanager
def recording_proxy() -> Iterator[tuple[int, list[str]]]:
    requests: list[str] = []

    class Refuse(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            line = self.rfile.readline(65_537)
            if line:
                requests.append(line.decode(errors="replace").strip())
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
