"""``stagepost``: the group of commands. Each is imported only when it is asked for: Spark takes its time."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

import click

from stagepost.cli.exits import INTERRUPTED

COMMANDS = {
    "worker": "stagepost.cli.worker",
    "process": "stagepost.cli.process",
    "initiate": "stagepost.cli.initiate",
    "audit": "stagepost.cli.audit",
    "trace": "stagepost.cli.trace",
    "status": "stagepost.cli.status",
    "doctor": "stagepost.cli.doctor",
    "dead": "stagepost.cli.dead",
    "resume": "stagepost.cli.resume",
    "migrate": "stagepost.cli.migrate",
    "unsubscribe": "stagepost.cli.unsubscribe",
    "reassign": "stagepost.cli.reassign",
}


class LazyGroup(click.Group):
    def main(self, *arguments: Any, **options: Any) -> Any:
        # A terminal may know fewer characters than ours, or than an id has.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*arguments, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl-C has one exit code, in every command; click has none of its own."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="stagepost")
def main() -> None:
    """Transactional, staged messaging: run an app's stages, start flows in bulk, and prove that nothing is missing.

    \b
    Exit codes: 0 all is well, 1 the answer is bad news, 2 it cannot be done as it was said, 3 the database says no,
    4 the books do not balance, 130 it was interrupted.
    """
