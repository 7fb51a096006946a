"""What dies with its process: counted apart from failures, for most of those who were there did not do it.

The first death only makes a message a *suspect*: it was running when its process died, perhaps beside the culprit. From
then on it runs alone, in a child process, and a death counts only when the living parent saw the child die by itself.
"""

from __future__ import annotations

from stagepost.flow.clock import microseconds

# Connections that end without a word under one message's own statements, after which it is a suspect. Once the message
# runs alone, each of them is a death.
LOST_MAX = 3
# Deaths alone, before the living parent's eyes, after which a message is a dead letter.
DEATHS_ALONE_MAX = 3
PAUSE_SECONDS_FIRST = 1.0
PAUSE_SECONDS_MAX = 60.0


def pause_after_death(deaths: int) -> int:
    """Microseconds until the next attempt, after the ``deaths``-th death."""
    return microseconds(min(PAUSE_SECONDS_FIRST * 2.0 ** min(deaths - 1, 16), PAUSE_SECONDS_MAX))


def is_death(lost: int, deaths: int) -> bool:
    """Whether the ``lost``-th connection that ended under a message counts as its death; it has had ``deaths``."""
    return deaths > 0 or lost >= LOST_MAX


def is_deadly(deaths: int) -> bool:
    """``deaths`` includes the first, which nobody is blamed for."""
    return deaths > DEATHS_ALONE_MAX
