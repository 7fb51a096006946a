"""The examination of RabbitMQ for ``stagepost doctor``: queues, policies, foreign consumers, targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagepost.broker.rabbitmq.link import PRODUCT
from stagepost.broker.rabbitmq.management import Ask, path_of
from stagepost.broker.rabbitmq.topology import Topology
from stagepost.ports.broker import EdgeAddresses, is_topic, mark_address, refused_address
from stagepost.ports.findings import Culprit, Finding, critical, fine, warning

# A policy with one of these loses messages: it removes old ones, or the whole queue, or the newest or the oldest ones.
LOSING = ("message-ttl", "expires")
UNCHECKED = "policies, foreign consumers by name, and dead-letter targets of other services' queues"


class Examination:
    """One look at the addresses of a store. ``ask`` asks the management API; None without its URL."""

    def __init__(self, topology: Topology, host: str, ask: Ask | None, addresses: EdgeAddresses) -> None:
        self._topology = topology
        self._host = host
        self._ask = ask
        self._addresses = addresses
        self._unchecked = "" if ask is not None else "the broker URL names no management API"
        self._queues: dict[str, Mapping[str, Any] | None] = {}

    def findings(self) -> list[Finding]:
        found = [self._check_queues(), self._check_policies(), self._check_consumers(), self._check_targets()]
        return [*(each for each in found if each is not None), *self._check_unchecked()]

    def _check_queues(self) -> Finding:
        wrong: list[Culprit] = []
        for each in self._addresses.received:
            wrong += [
                {"address": each, "error": text} for text in self._topology.differences(each, self._addresses.store)
            ]
        if not wrong:
            return fine("broker-queues", f"{len(self._addresses.received)} addresses are this store's, as declared")
        return critical(
            "broker-queues",
            "queues of this store are missing, differ from its declaration, or belong to another store",
            "Follow each error. A worker declares queues that are missing when it starts.",
            wrong,
        )

    def _check_policies(self) -> Finding | None:
        if self._unchecked:
            return None
        losing: list[Culprit] = []
        limiting: list[Culprit] = []
        for address in self._addresses.received:
            for name in (address, refused_address(address), mark_address(address)):
                queue = self._queue(name) or {}
                policy = queue.get("effective_policy_definition") or {}
                named = {"queue": name, "policy": queue.get("policy") or queue.get("operator_policy") or ""}
                losing += [{**named, "setting": each, "value": str(policy[each])} for each in LOSING if each in policy]
                limit = policy.get("delivery-limit", -1)
                if name == address and limit >= 0:
                    limiting.append({**named, "setting": "delivery-limit", "value": str(limit)})
        if losing:
            return critical(
                "broker-policies",
                "a policy removes messages of this store, or its queues",
                "Remove the setting from the policy, or exclude these queues from its pattern.",
                [*losing, *limiting],
            )
        if limiting:
            return warning(
                "broker-policies",
                f"a policy moves messages to the queue {refused_address('ADDRESS')} after some lost connections",
                "Remove the setting from the policy, or exclude these queues: Stagepost counts failures itself.",
                limiting,
            )
        return None if self._unchecked else fine("broker-policies", "no policy removes messages of this store")

    def _check_consumers(self) -> Finding:
        strangers: list[Culprit] = []
        for address, known in self._addresses.received.items():
            queue = None if self._unchecked else self._queue(address)
            if queue is not None:
                strangers += [
                    {"queue": address, "consumer": name}
                    for each in queue.get("consumer_details") or []
                    if (name := self._stranger(each)) is not None
                ]
            elif (state := self._topology.state(address)) is not None and state.consumers > known:
                strangers.append({"queue": address, "consumers": state.consumers, "of_this_store_at_most": known})
        if not strangers:
            return fine("broker-consumers", "no foreign consumer was seen")
        return critical(
            "broker-consumers",
            "clients that are not this store's consume from its addresses",
            "Stop these clients, or let them use an address of their own.",
            strangers,
        )

    def _stranger(self, consumer: Mapping[str, Any]) -> str | None:
        """Return the name of a consumer's connection, if it is not Stagepost's."""
        name = str((consumer.get("channel_details") or {}).get("connection_name", ""))
        connection = self._asked("connections", name) if name else None
        if connection is None or (connection.get("client_properties") or {}).get("product") == PRODUCT:
            return None
        return name

    def _check_targets(self) -> Finding:
        wrong: list[Culprit] = []
        for each in self._addresses.sent:
            if is_topic(each):
                continue
            state = self._topology.state(each)
            if state is None:
                wrong.append({"target": each, "error": "no queue takes its messages"})
            elif state.messages and not state.consumers:
                wrong.append({"target": each, "error": "no client reads it", "messages": state.messages})
            if state is not None and not self._unchecked and not _has_dead_letters(self._queue(each) or {}):
                wrong.append({"target": each, "error": "it has no dead-letter target"})
        if not wrong:
            return fine("broker-targets", f"{len(self._addresses.sent)} targets of other services have a reader")
        return warning(
            "broker-targets",
            "targets of other services need care",
            "Start the service that reads the target, or correct its name. Give its queue a dead-letter exchange, "
            "because RabbitMQ drops a message without one that its reader rejects.",
            wrong,
        )

    def _check_unchecked(self) -> list[Finding]:
        if not self._unchecked:
            return []
        return [
            warning(
                "broker-unchecked",
                f"not checked at {self._host}: {UNCHECKED}: {self._unchecked}",
                "Enable the plugin rabbitmq_management, give the user the tag 'monitoring', and add "
                "management=http://HOST:15672 to the parameters of the broker URL.",
            )
        ]

    def _queue(self, name: str) -> Mapping[str, Any] | None:
        if name not in self._queues:
            self._queues[name] = self._asked("queues", self._topology.virtual_host, name)
        return self._queues[name]

    def _asked(self, kind: str, *names: str) -> Mapping[str, Any] | None:
        if self._ask is None or self._unchecked:
            return None
        try:
            answer = self._ask(path_of(kind, *names))
        except (OSError, ValueError) as error:
            self._unchecked = f"the management API does not answer: {error}"
            return None
        return answer if isinstance(answer, dict) else None


def _has_dead_letters(queue: Mapping[str, Any]) -> bool:
    policy = queue.get("effective_policy_definition") or {}
    return "x-dead-letter-exchange" in (queue.get("arguments") or {}) or "dead-letter-exchange" in policy
