"""One look at a store: what is wrong with it, or will go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stagepost.app.settings import is_postgres
from stagepost.app.stores import examine_store
from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import StoreError
from stagepost.flow.vitals import Heart, ServerVitals, Vitals
from stagepost.liveness.lock_file import LockFileSurvey
from stagepost.liveness.proof import EVERY_APP
from stagepost.observe.checks.file import check_file
from stagepost.observe.checks.finding import SEVERITIES, Finding, Severity, critical
from stagepost.observe.checks.server import check_server


@dataclass(frozen=True, slots=True)
class Report:
    """``has_looked`` is false where there was nothing that could be looked at; the one finding says why."""

    place: str | None
    has_looked: bool
    findings: list[Finding]

    @property
    def severity(self) -> Severity:
        return max((each.severity for each in self.findings), key=SEVERITIES.index)


def examine(url: str, source: str, clock: Clock, *, thorough: bool = False) -> Report:
    """``source`` says where the URL was found. Raises ``DeclarationError`` for a URL that names no store."""
    try:
        vitals = examine_store(url, clock, lambda folder: hearts_in(folder, clock), thorough=thorough)
    except StoreError as error:
        return Report(None, has_looked=False, findings=[_unreachable(url, source, error)])
    return Report(vitals.place, has_looked=True, findings=diagnose(vitals, clock.now()))


def diagnose(vitals: Vitals, now: int) -> list[Finding]:
    """The worst first; among equals, in the order of the checks. Pure."""
    found = check_server(vitals, now) if isinstance(vitals, ServerVitals) else check_file(vitals, now)
    return sorted(found, key=lambda each: -SEVERITIES.index(each.severity))


def hearts_in(folder: Path, clock: Clock) -> list[Heart]:
    """Of the incarnations with a lock file. Each was written on this machine: its time is by this clock."""
    hearts = []
    for found in LockFileSurvey(folder, EVERY_APP, clock).look():
        assert isinstance(found.key, Path)
        header = found.record.header
        try:
            beat = found.key.stat().st_mtime_ns // 1_000
        except FileNotFoundError:
            # It signed off meanwhile.
            continue
        silent = max(0.0, (clock.now() - beat) / SECOND)
        hearts.append(Heart(header.owner, header.node, header.process, found.is_locked, silent, header.started_at))
    return hearts


def _unreachable(url: str, source: str, error: StoreError) -> Finding:
    seen = f"{error} (the URL was taken from {source})"
    if is_postgres(url):
        return critical(
            "server-unreachable",
            seen,
            "Check that the server runs and lets this machine in (pg_isready -h HOST -p PORT; listen_addresses, "
            "pg_hba.conf, firewall), and host, port, user, password and database in the URL.",
        )
    return critical(
        "file-unreadable",
        seen,
        "Name the file that there is with --database, or run this where its stagepost.toml is; give this user the "
        "right to read it; restore a backup where it is damaged.",
    )
