"""The history of a flow as a tree: each message has its waypoints, and is below the message that caused it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from stagepost.ports.effects import LoggedEffect
from stagepost.ports.journal import Waypoint
from stagepost.transaction.effects import EffectLog

Standing = Literal["waiting", "running", "committed", "delayed", "dead", "edited", "expired", "confirmed"]

_STANDING: dict[str, Standing] = {
    "accepted": "waiting",
    "sent": "waiting",
    "returned": "waiting",
    "replayed": "waiting",
    "received": "running",
    "failed": "delayed",
    "refused": "dead",
    "died": "delayed",
    "delayed": "delayed",
    "committed": "committed",
    "dead": "dead",
    "edited": "edited",
    "expired": "expired",
    "arrived": "waiting",
    "confirmed": "confirmed",
    # A run committed, and the message waits to run again.
    "doubted": "waiting",
    "duplicate": "committed",
}
# The message reached its end, and no more comes of it here.
_ENDED: set[Standing] = {"committed", "expired", "confirmed"}


@dataclass
class TracedMessage:
    """A message of a flow. ``stage`` is its target, and ``waypoints`` are its journal lines in their order.

    ``effects`` are its calls to the outside, from the log of effects.
    """

    message_id: str
    stage: str
    cause_id: str | None
    kind: str | None
    waypoints: list[Waypoint] = field(default_factory=list)
    caused: list[TracedMessage] = field(default_factory=list)
    effects: list[LoggedEffect] = field(default_factory=list)

    @property
    def standing(self) -> Standing:
        # A copy that a receiver recognised changes nothing about the message. One that its stage recognised ends.
        changes = [each.waypoint for each in self.waypoints if each.waypoint != "duplicate" or each.attempt]
        return _STANDING[changes[-1]] if changes else "waiting"


@dataclass(frozen=True)
class Trace:
    """A flow. ``roots`` are the messages from outside, and those whose cause is no longer in the journal."""

    flow_id: str
    roots: list[TracedMessage]
    messages: dict[str, TracedMessage]

    @property
    def began_at(self) -> int:
        return min(each.waypoints[0].at for each in self.messages.values())

    @property
    def last_at(self) -> int:
        return max(each.waypoints[-1].at for each in self.messages.values())

    @property
    def standing(self) -> Literal["completed", "dead", "under way"]:
        standings = {each.standing for each in self.messages.values()}
        # The message that replaced an edited one is among them.
        standings.discard("edited")
        # A reply that expired is no failure of the flow. A message that left goes on in the store of its receiver.
        if standings <= _ENDED:
            return "completed"
        return "dead" if standings <= {*_ENDED, "dead"} else "under way"


class Histories(Protocol):
    """The lines of a flow, as ``ports.journal.Journal`` has them."""

    def history(self, flow_or_message_id: str) -> list[Waypoint]: ...


def read_trace(journal: Histories, flow_or_message_id: str, log: EffectLog | None = None) -> Trace | None:
    """Return the flow of that id, or of the message of that id. Return None if the journal has neither.

    ``log`` is the log of effects, if the store has one.
    """
    waypoints = journal.history(flow_or_message_id)
    if not waypoints:
        return None
    found = arrange(waypoints[0].flow_id, waypoints)
    if log is not None:
        with log.reading() as effects:
            for each in effects.of_flow(found.flow_id):
                # A purge may have removed the lines of a message whose effects the log still has.
                if each.id.message_id in found.messages:
                    found.messages[each.id.message_id].effects.append(each)
    return found


def describe_effect(effect: LoggedEffect) -> str:
    """Say what is known about an effect, in a few words."""
    if effect.ending == "undone":
        return "undone"
    if effect.ending == "doubted":
        return "possibly done, not undone"
    if effect.result is not None:
        return "done"
    return "called, without a result" if effect.unknown else "not done"


def arrange(flow_id: str, waypoints: list[Waypoint]) -> Trace:
    messages: dict[str, TracedMessage] = {}
    for each in waypoints:
        message = TracedMessage(each.message_id, each.stage, each.cause_id, each.kind)
        messages.setdefault(each.message_id, message).waypoints.append(each)
    roots: list[TracedMessage] = []
    for message in messages.values():
        cause = messages.get(message.cause_id) if message.cause_id else None
        (roots if cause is None else cause.caused).append(message)
    return Trace(flow_id, roots, messages)
