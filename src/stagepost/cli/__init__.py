"""The command line.

Exit codes: 0 all is well; 1 the answer is bad news (something is lost, or not found, or was given up); 2 what was asked
for cannot be done as it was said; 3 the database says no; 4 the books do not balance; 130 interrupted.
"""

from stagepost.cli.main import main

__all__ = ["main"]
