"""The command line.

Exit codes: 0 success; 1 bad news (a message is lost, a thing is not found, or work was not finished); 2 the request is
wrong, and nothing was done; 3 the database refused, or is unavailable; 4 the counts do not add up; 130 interrupted.
"""

from stagepost.cli.main import main

__all__ = ["main"]
