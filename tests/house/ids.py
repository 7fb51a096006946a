"""List the ids of all tests: ``python -m tests.house.ids [OLD_FILE]``.

Without a file, print the ids that pytest collects, sorted, one a line. With a file of an earlier list, print the ids in
it that pytest no longer collects; the exit code is 1 if there are any. Two commits are compared by their lists.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class CannotCollectError(Exception):
    """The text is what pytest printed."""


def collect(*arguments: str) -> list[str]:
    """Return the ids of all tests, or of those that the arguments name, sorted. Raises ``CannotCollectError``."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCollectError(done.stdout + done.stderr)
    # An empty line ends the ids.
    return sorted(done.stdout.partition("\n\n")[0].splitlines())


def main() -> int:
    found = collect()
    if len(sys.argv) > 1:
        old = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
        gone = sorted(set(old) - set(found))
        print(*gone, sep="\n", end="\n" if gone else "")  # noqa: T201 - it is what the command is for
        return 1 if gone else 0
    print(*found, sep="\n")  # noqa: T201 - it is what the command is for
    return 0


if __name__ == "__main__":
    sys.exit(main())
