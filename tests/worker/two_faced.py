"""An app that can be opened by the command, and not by the processes it starts."""

from __future__ import annotations

import sys

from stagepost import DeclarationError
from tests.faults.bank import open_bank

if "worker" not in sys.argv:
    raise DeclarationError("not in a worker process")

app = open_bank().app
