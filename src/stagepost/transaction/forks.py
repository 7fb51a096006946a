"""Count the forks between the first Python process and this one.

Every statement of a handler reads the count. A hook of Python's forks keeps it, because reading the process id would be
a system call each time.
"""

from __future__ import annotations

import os


class Forks:
    def __init__(self) -> None:
        self.count = 0
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.count += 1


forks = Forks()
