"""Spark's own pages and REST answers, as a person with a browser and a program get them."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urldefrag, urljoin, urlsplit

from tests.waiting import PATIENCE_SECONDS

PAGES_MAX = 150
ANSWERS = (
    "jobs",
    "stages",
    "executors",
    "allexecutors",
    "environment",
    "sql?details=true",
    "storage/rdd",
    "allmiscellaneousprocess",
)


def read(url: str) -> str:
    """Return the text of a page, also of one that says that there is none."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return str(answer.read().decode(errors="replace"))
    except HTTPError as error:
        return error.read().decode(errors="replace")


def pages(start: str) -> dict[str, str]:
    """Return the page, and all pages of the same server that it leads to, by address. A page that ends a job is not
    opened."""
    found: dict[str, str] = {}
    waiting = [start]
    while waiting and len(found) < PAGES_MAX:
        url = waiting.pop(0)
        if url in found:
            continue
        found[url] = read(url)
        links = (urldefrag(urljoin(url, link))[0] for link in re.findall(r'href="([^"]+)"', found[url]))
        waiting += [
            link
            for link in links
            if urlsplit(link).netloc == urlsplit(start).netloc and "/static/" not in link and "kill" not in link
        ]
    return found


def states(start: str) -> dict[str, str]:
    """Return what a master or a worker says to programs, by address."""
    names = ("json", "metrics/json", "metrics/master/json", "metrics/applications/json")
    found = {url: read(url) for url in (f"{start}/{name}/" for name in names)}
    # For an address that it does not have, it shows its first page.
    return {url: text for url, text in found.items() if text.startswith("{")}


def answers(ui: str) -> dict[str, Any]:
    """Return what the REST interface says of the one application of those pages, by the end of its address."""
    (app,) = json.loads(read(f"{ui}/api/v1/applications"))
    found = {name: read(f"{ui}/api/v1/applications/{app['id']}/{name}") for name in ANSWERS}
    return {name: json.loads(text) for name, text in found.items()}


def with_loops(ui: str, number: int) -> Any:
    """Return what the REST interface says once so many claim loops run, and else None."""
    rest = answers(ui)
    return rest if sum(job["numTasks"] for job in rest["jobs"] if job["numActiveTasks"]) == number else None
