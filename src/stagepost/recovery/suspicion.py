"""Decide what a process's death means for the messages that it ran.

Deaths are counted apart from failures, because most messages in a crashed process did not cause the crash.

The first death only makes a message a *suspect*: it ran when its process died, perhaps beside the message that caused
the crash. From then on it runs alone, in a child process. A death counts only if the living parent saw the child die
and had not ended it.
"""

from __future__ import annotations

from stagepost.flow.clock import microseconds

# After this many connections that the server ended during a message's statements, the message is a suspect. Once it
# runs alone, each of them is a death.
LOST_MAX = 3
# After this many deaths alone, seen by the living parent, a message becomes a dead letter.
DEATHS_ALONE_MAX = 3
# So many processes in a row that die during a message's delivery make it a suspect.
DELIVERY_DEATHS_MAX = 3
PAUSE_SECONDS_FIRST = 1.0
PAUSE_SECONDS_MAX = 60.0


def pause_after_death(deaths: int) -> int:
    """Return the microseconds until the next attempt, after the ``deaths``-th death."""
    return microseconds(min(PAUSE_SECONDS_FIRST * 2.0 ** min(deaths - 1, 16), PAUSE_SECONDS_MAX))


def is_death(lost: int, deaths: int) -> bool:
    """Say whether the ``lost``-th connection that ended during a message, which has had ``deaths``, is its death."""
    return deaths > 0 or lost >= LOST_MAX


def is_suspect_after(deaths: int) -> bool:
    """Say whether the message is a suspect after so many processes died in a row during its delivery."""
    return deaths >= DELIVERY_DEATHS_MAX


def is_deadly(deaths: int) -> bool:
    """Say whether the message becomes a dead letter. ``deaths`` includes the first, which does not count."""
    return deaths > DEATHS_ALONE_MAX
