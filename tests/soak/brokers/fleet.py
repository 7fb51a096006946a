"""The processes of a campaign: the workers of both services. Those of one command are never killed.

payments   one command: its supervisor, its broker process and two worker processes are all killed
ledger     one command that is killed, and one that is not; the memory of its processes is watched
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.faults.worker_fleet import PROCESS, SCRIPT
from tests.places import bare_environment
from tests.processes import ROOT, Process, ProcessGroup, kill
from tests.soak.brokers.books import Books, Store
from tests.soak.brokers.services import PREFIX, RAISES, SABOTAGE, TICKETS
from tests.soak.brokers.targets import BrokerTarget
from tests.waiting import wait_until

APP = "tests.soak.brokers.services"
EDGE = "stagepost.worker.edge"
VICTIM = "soak_victim"
# By the name of a command, its service and its options.
COMMANDS = {
    "payments": ("payments", ("--processes", "2", "--threads", "1")),
    "ledger": ("ledger", ("--processes", "1", "--threads", "2")),
    "spared": ("ledger", ("--processes", "1", "--threads", "1")),
    # A second dispatcher of payments: only where a campaign wants one.
    "payments-2": ("payments", ("--processes", "1", "--threads", "1")),
}


class Fleet:
    """``raises`` is the share of the attempts that fail. ``sabotage`` names what is broken in all processes."""

    def __init__(self, books: Books, target: BrokerTarget, folder: Path, *, raises: float, sabotage: str) -> None:
        self._stores: dict[str, Store] = {each.name: each for each in books.stores}
        self._target = target
        self._folder = folder
        self._victims = ProcessGroup()
        self._spared = ProcessGroup()
        self._commands: dict[str, Process] = {}
        self._settings = {RAISES: str(raises), PREFIX: target.prefix, "STAGEPOST_BROKER": target.url}
        if sabotage:
            self._settings[SABOTAGE] = sabotage
        self.tickets = folder / "tickets"
        self.tickets.mkdir()
        self._stood: dict[int, float] = {}

    def start(self, name: str) -> None:
        service, options = COMMANDS[name]
        group = self._spared if name == "spared" else self._victims
        environment = bare_environment() | group.environment | self._settings
        environment["STAGEPOST_DATABASE"] = self._stores[service].url
        if group is self._victims:
            environment[TICKETS] = str(self.tickets)
        command = [str(SCRIPT), "worker", f"{APP}:{service}", *options, "--json"]
        log = self._folder / f"{name}.log"
        with log.open("ab") as file:
            started = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self._commands[name] = Process(started, log)

    def kill_one(self, random: Random) -> bool:
        """Kill a worker process or a broker process. Return False where none runs."""
        victims = self.victims()
        if victims:
            kill(random.choice(victims))
        return bool(victims)

    def kill_supervisor(self, random: Random) -> None:
        """Kill a supervisor, and start its command again. Its processes end, because their parent is gone."""
        name = random.choice([each for each in self._commands if each != "spared"])
        self._commands[name].kill()
        self.start(name)

    def suspend(self, random: Random) -> int | None:
        """Suspend a worker process or a broker process. Returns its id."""
        victims = self.victims()
        if not victims:
            return None
        pid = random.choice(victims)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        return pid

    def resume(self, pid: int) -> None:
        if pid in self._victims.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def victims(self) -> list[int]:
        return [*self._victims.pids(PROCESS), *self._victims.pids(EDGE)]

    def edges(self) -> list[int]:
        return self._victims.pids(EDGE)

    def spared(self) -> dict[str, int]:
        """Return the processes that are never killed, by name. Waits until they have started."""
        parts = {"worker": PROCESS, "receiver and dispatcher": EDGE}
        found = {
            name: wait_until(lambda part=part: self._spared.pids(part), f"the {name} has started")[0]  # type: ignore[misc]
            for name, part in parts.items()
        }
        return {"supervisor": self._commands["spared"].pid, **found}

    def left_tickets(self) -> list[str]:
        return sorted(each.name for each in self.tickets.iterdir())

    def stop(self) -> dict[str, int]:
        """Stop all commands in good order. Return their exit codes."""
        for each in self._commands.values():
            each.signal(signal.SIGTERM)
        return {name: each.wait() for name, each in self._commands.items()}

    def kill_all(self) -> None:
        for group in (self._victims, self._spared):
            group.kill_all()

    def logs(self) -> dict[str, str]:
        return {each.stem: each.read_text(errors="replace") for each in sorted(self._folder.glob("*.log"))}
