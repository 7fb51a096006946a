"""``stagepost``: the group of commands. Each command is imported only when it is called, because Spark loads slowly."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

import click

from stagepost.cli.exits import INTERRUPTED

COMMANDS = {
    "worker": "stagepost.cli.worker",
    "gateway": "stagepost.cli.gateway",
    "process": "stagepost.cli.process",
    "initiate": "stagepost.cli.initiate",
    "audit": "stagepost.cli.audit",
    "reconcile": "stagepost.cli.reconcile",
    "trace": "stagepost.cli.trace",
    "status": "stagepost.cli.status",
    "purge": "stagepost.cli.purge",
    "archive": "stagepost.cli.archive",
    "doctor": "stagepost.cli.doctor",
    "check": "stagepost.cli.check",
    "dead": "stagepost.cli.dead",
    "replay": "stagepost.cli.bulk_replay",
    "quarantine": "stagepost.cli.quarantine",
    "resume": "stagepost.cli.admin",
    "migrate": "stagepost.cli.admin",
    "unsubscribe": "stagepost.cli.admin",
    "reassign": "stagepost.cli.admin",
    "release": "stagepost.cli.release",
}


class LazyGroup(click.Group):
    def main(self, *arguments: Any, **options: Any) -> Any:
        # The encoding of the terminal may lack characters of our texts, or of an id.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*arguments, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, with exit code 130 after Ctrl-C in every command. Click would exit with 1."""
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
    Exit codes: 0 success, 1 bad news, 2 the request is wrong, 3 the database refused or is unavailable,
    4 the counts do not add up, 130 interrupted.
    """
