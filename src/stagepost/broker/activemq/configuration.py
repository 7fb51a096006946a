"""ActiveMQ's configuration file: the settings that lose messages, or that make each message a hundred times slower."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

LOSES, SLOWS = "loses messages", "slows messages down"


class Fault(NamedTuple):
    """A setting, its effect (``LOSES`` or ``SLOWS``), what happens, and the remedy."""

    setting: str
    effect: str
    result: str
    remedy: str


def faults_of(file: Path) -> list[Fault]:
    """Return the faults of a configuration file. Raises ``OSError`` and ``xml.etree.ElementTree.ParseError``."""
    root = ET.parse(file).getroot()  # noqa: S314 - the operator of the broker wrote the file
    return [*_losing(root), *_filling(root), *_slow(root)]


def _losing(root: ET.Element) -> Iterator[Fault]:
    for each in root.iterfind(".//{*}broker"):
        if _is(each, "persistent", "false"):
            yield Fault('broker persistent="false"', LOSES, "a restart loses all messages", 'Write persistent="true".')
    for _ in root.iterfind(".//{*}memoryPersistenceAdapter"):
        yield Fault("memoryPersistenceAdapter", LOSES, "a restart loses all messages", "Use kahaDB.")
    for each in root.iterfind(".//{*}kahaDB"):
        strategy = each.get("journalDiskSyncStrategy", "always")
        if strategy.lower() != "always" or _is(each, "enableJournalDiskSyncs", "false"):
            yield Fault(
                f'kahaDB journalDiskSyncStrategy="{strategy}"',
                LOSES,
                "a power failure loses messages that the broker has confirmed",
                'Write journalDiskSyncStrategy="always", and leave enableJournalDiskSyncs out.',
            )
    for name in ("discardingDLQBrokerPlugin", "discarding"):
        for _ in root.iterfind(f".//{{*}}{name}"):
            yield Fault(
                name, LOSES, "dead letters of other clients, and messages that expire, are dropped", "Remove it."
            )
    for each in root.iterfind(".//{*}timeStampingBrokerPlugin"):
        if each.get("ttlCeiling", "0") != "0" or each.get("zeroExpirationOverride", "0") != "0":
            yield Fault(
                "timeStampingBrokerPlugin",
                LOSES,
                "messages that wait for long expire",
                "Leave ttlCeiling and zeroExpirationOverride out.",
            )
    for each in root.iterfind(".//{*}policyEntry"):
        if _is(each, "gcInactiveDestinations", "true"):
            yield Fault(
                "policyEntry gcInactiveDestinations",
                LOSES,
                "the empty queue of a subscriber goes, and later publications do not reach it",
                "Leave it out for the queues Consumer.>",
            )


def _filling(root: ET.Element) -> Iterator[Fault]:
    usages = root.findall(".//{*}systemUsage")
    if not any(each.get("sendFailIfNoSpaceAfterTimeout") or _is(each, "sendFailIfNoSpace", "true") for each in usages):
        yield Fault(
            "systemUsage without sendFailIfNoSpaceAfterTimeout",
            SLOWS,
            "a full broker stops reading, and every publication waits for its deadline of 30 s",
            'Write sendFailIfNoSpaceAfterTimeout="3000".',
        )


def _slow(root: ET.Element) -> Iterator[Fault]:
    for each in root.iterfind(".//{*}transportConnector"):
        uri = each.get("uri", "")
        if uri.startswith(("stomp", "auto")) and "tcpnodelay=true" not in uri.lower():
            yield Fault(
                f"transportConnector {each.get('name', uri)} without transport.tcpNoDelay=true",
                SLOWS,
                "an answer may wait for 40 ms",
                "Add transport.tcpNoDelay=true to its uri.",
            )
    for each in root.iterfind(".//{*}policyEntry"):
        if _is(each, "persistJMSRedelivered", "true"):
            yield Fault(
                "policyEntry persistJMSRedelivered",
                SLOWS,
                "each look at a depth marks messages as redelivered, and these are received one by one",
                "Leave it out.",
            )


def _is(element: ET.Element, name: str, value: str) -> bool:
    """Return whether an attribute has the value. ActiveMQ ignores the case of true and false."""
    return element.get(name, "").lower() == value
