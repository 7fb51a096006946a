"""``python -m examples.mistakes``, or with the names of some mistakes."""

from __future__ import annotations

import sys

from examples.mistakes.app import MISTAKES
from examples.mistakes.count import count

print(
    f"{'':20}{'runs':>6}{'mail lost':>12}{'mail twice':>12}{'invoice twice':>15}{'others kept out':>17}{'wrong state':>13}"
)
for name in ("", *(sys.argv[1:] or MISTAKES)):
    found = count(name)
    print(
        f"{name or 'no mistake':20}{found.runs:6}{found.lost_mails:12}{found.doubled_mails:12}"
        f"{found.doubled_invoices:15}{found.kept_out:17}{found.wrong_states:13}"
    )
