"""What ``stagepost doctor`` says of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from click.testing import Result

from tests.cli.shop import command, parsed

Found = dict[str, Any]


@dataclass(frozen=True)
class Visit:
    exit_code: int
    report: Found

    @classmethod
    def of(cls, result: Result) -> Visit:
        return cls(result.exit_code, parsed(result))

    def __getitem__(self, code: str) -> Found:
        """The one finding of that code."""
        found: Found
        (found,) = [each for each in self.report["findings"] if each["code"] == code]
        return found

    def severities(self, *wanted: str) -> dict[str, str]:
        """Of the findings that are not ok, or of those wanted."""
        found = {each["code"]: each["severity"] for each in self.report["findings"]}
        if wanted:
            return {code: found[code] for code in wanted}
        return {code: severity for code, severity in found.items() if severity != "ok"}


def visit(url: str, *arguments: str) -> Visit:
    return Visit.of(command("doctor", "--json", *arguments, "--database", url))
