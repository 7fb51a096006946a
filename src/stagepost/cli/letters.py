"""Dead letters as the commands name them, and who names them."""

from __future__ import annotations

import getpass
import os

from stagepost.recovery.letters import KeptLetter, Selection
from stagepost.transaction.seams import Reader

# Whatever has more of them is beyond 64 bits.
NUMBER_DIGITS_MAX = 18


def named(letter: str) -> list[Selection]:
    """What that may mean, the likeliest first: a message's id, or a flow's, may consist of digits, too."""
    is_number = letter.isdecimal() and len(letter) <= NUMBER_DIGITS_MAX
    by_number = [Selection("id", int(letter))] if is_number else []
    return [*by_number, Selection("message", letter), Selection("flow", letter)]


def find(reader: Reader, letter: str) -> tuple[Selection, KeptLetter] | None:
    """What it means, and the first letter of that."""
    return next(((each, kept) for each in named(letter) for kept in reader.letters(each)), None)


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container, under a number that nobody gave a name.
        return f"user {os.getuid()}"
