"""How often this process came into being by a fork of one that ran Python.

Asked before every statement of a handler, so it is counted where Python forks: to ask the kernel who we are would be a
system call each time.
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
