"""Accept messages: ask for earlier acceptances, validate, check, and write what passed.

Validation never turns an accepted message into a refused one. A producer may retry after a lost answer, and the schema
or the check may have changed since. A message that fails is therefore looked up before the producer hears of it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jsonschema
import msgspec
from jsonschema.exceptions import best_match

from stagepost.flow import codec, ids
from stagepost.flow.clock import Clock
from stagepost.flow.envelope import Message
from stagepost.flow.errors import (
    CommitUnknown,
    HandlerError,
    StoreContention,
    StoreError,
    StoreExhausted,
    StoreRefused,
    Undecodable,
)
from stagepost.flow.initiation import Acceptance, acceptance_of_encoded
from stagepost.flow.texts import one_line
from stagepost.gateway.group_commit import GroupCommit, Outcome
from stagepost.gateway.json_bodies import Body
from stagepost.gateway.posted import Posted
from stagepost.gateway.problems import Problem
from stagepost.gateway.routes import BoundRoute
from stagepost.gateway.steps import GatewayListener, GatewayStep
from stagepost.gateway.threads import Threads
from stagepost.runtime.flow_starter import FlowStarter
from stagepost.transaction.database_wait import DATABASE_UNAVAILABLE

SCOPE_PREFIX = "gateway:"
# Checks that run in threads at the same time.
CHECKS_MAX = 40
# Look-ups of accepted keys at the same time: each holds a connection to the store.
LOOK_UPS_MAX = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Item:
    """A message of a request. ``theirs`` is the producer's id. ``body`` is None for a text that is not JSON.

    ``digest``      of the body
    ``problem``     why it cannot be accepted, if that is known already
    ``attributes``  of its CloudEvent
    """

    theirs: str
    body: Body | None
    digest: str
    problem: Problem | None = None
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to an accepted message, or to its duplicate."""

    theirs: str
    message_id: str
    status: str
    digest: str


Answer = Receipt | Problem


class Acceptor:
    """Accepts the messages of one gateway. ``node`` names its process in the journal."""

    def __init__(
        self, starter: FlowStarter, commits: GroupCommit, clock: Clock, node: str, listener: GatewayListener
    ) -> None:
        self._starter = starter
        self._commits = commits
        self._clock = clock
        self._node = node
        self._listener = listener
        self._checks = Threads(CHECKS_MAX)
        self._look_ups = Threads(LOOK_UPS_MAX)

    async def accept(self, route: BoundRoute, producer: str, items: Sequence[Item], deadline: float) -> list[Answer]:
        """Accept each message or not, and return an answer for each. Raises ``Problem`` for all of them."""
        wanted = [self.acceptance(route, producer, each) for each in items]
        answers: list[Answer | None] = [None] * len(items)
        if route.check is not None:
            # A check may be slow or may fail, and must not run for a message that is accepted already.
            self._answer_known(answers, items, wanted, await self.look_up(wanted, deadline))
        problems: dict[int, Problem] = {}
        for place, item in enumerate(items):
            if answers[place] is None:
                try:
                    wanted[place] = await self._validated(route, item, wanted[place], deadline)
                except Problem as problem:
                    problems[place] = problem
        await self._answer_refused(answers, items, wanted, problems, deadline)
        open_places = [place for place, answer in enumerate(answers) if answer is None]
        if open_places:
            passed = [wanted[place] for place in open_places]
            self._listener(GatewayStep.VALID, [each.key for each in passed])
            for place, outcome in zip(open_places, await self._commits.write(passed, deadline), strict=True):
                answers[place] = _answer(items[place], wanted[place], outcome)
        return [answer for answer in answers if answer is not None]

    def acceptance(self, route: BoundRoute, producer: str, item: Item) -> Acceptance:
        """Return the acceptance of a message as it came, with the ids that it has once it is accepted."""
        key = ids.of_producer(route.name, producer, item.theirs)
        flow_id = f"{route.name}:{producer}:{item.theirs}"
        raw = msgspec.Raw(b"null") if item.body is None else item.body.raw
        return acceptance_of_encoded(
            route.target,
            (Message(type=route.type.__name__, body=raw),),
            item.digest,
            flow_id=flow_id if len(flow_id) <= ids.LENGTH_MAX else key,
            message_id=key,
            properties={"route": route.name, "producer": producer, "producer_id": item.theirs},
            node=self._node,
            now=self._clock.now(),
            scope=f"{SCOPE_PREFIX}{route.name}:{producer}",
        )

    async def look_up(self, acceptances: Sequence[Acceptance], deadline: float) -> list[str | None]:
        """Return the digests that the keys were accepted with: see ``FlowStarter.look_up``. Raises ``Problem``."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._look_ups.run(partial(self._starter.look_up, acceptances))
        except TimeoutError:
            raise Problem("deadline-passed", "the store did not answer before the request's deadline") from None
        except StoreError as error:
            raise problem_of(error) from error

    async def _answer_refused(
        self,
        answers: list[Answer | None],
        items: Sequence[Item],
        wanted: Sequence[Acceptance],
        problems: dict[int, Problem],
        deadline: float,
    ) -> None:
        """Answer the messages that have a problem, unless they are accepted already, perhaps in this moment."""
        refused = [place for place, problem in problems.items() if problem.is_about_the_message]
        if refused:
            known = await self.look_up([wanted[place] for place in refused], deadline)
            digests: list[str | None] = [None] * len(items)
            for place, digest in zip(refused, known, strict=True):
                digests[place] = digest
            self._answer_known(answers, items, wanted, digests)
        for place, problem in problems.items():
            answers[place] = answers[place] or problem

    def _answer_known(
        self,
        answers: list[Answer | None],
        items: Sequence[Item],
        wanted: Sequence[Acceptance],
        digests: Sequence[str | None],
    ) -> None:
        for place, digest in enumerate(digests):
            if digest is not None:
                answers[place] = _known(items[place], wanted[place], digest)

    async def _validated(self, route: BoundRoute, item: Item, wanted: Acceptance, deadline: float) -> Acceptance:
        """Return the acceptance with the message in its stored form. Raises ``Problem``."""
        if item.problem is not None:
            raise item.problem
        assert item.body is not None, "a message without a body has a problem"
        if route.validator is not None:
            check_schema(route.validator, item.body.value)
        message = _message(route, item.body, item.attributes)
        if route.check is not None:
            await self._checked(route, item.body.value if route.is_delivery else message, deadline)
        try:
            encoded = codec.encode(message, route.type)
        except HandlerError as error:
            raise Problem("message-invalid", str(error)) from error
        outgoing = wanted.outgoing
        stored = (Message(type=route.type.__name__, body=encoded),)
        envelope = msgspec.structs.replace(outgoing.envelope, messages=stored)
        return replace(wanted, outgoing=msgspec.structs.replace(outgoing, envelope=envelope))

    async def _checked(self, route: BoundRoute, message: Any, deadline: float) -> None:
        assert route.check is not None, "only routes with a check are checked"
        try:
            async with asyncio.timeout_at(deadline):
                if inspect.iscoroutinefunction(route.check):
                    await route.check(message)
                else:
                    await self._checks.run(partial(route.check, message))
        except Problem:
            raise
        except TimeoutError:
            raise Problem("deadline-passed", "the service's check did not end before the request's deadline") from None
        except Exception as error:
            logger.error(  # noqa: TRY400 - the stack would be the user's, and one line tells the error
                "check of route %s failed: %s: %s",
                route.name,
                type(error).__name__,
                one_line(str(error)),
                extra={"event": "gateway-check-failed"},
            )
            raise Problem(
                "check-failed", "the service's check raised an error, which is in the gateway's log"
            ) from error


def check_schema(validator: jsonschema.Draft202012Validator, value: Any) -> None:
    """Raise ``Problem`` unless the value matches the schema."""
    try:
        error = best_match(validator.iter_errors(value))
    except RecursionError:
        raise Problem("schema-mismatch", "the schema's recursion is too deep for this message") from None
    if error is not None:
        raise Problem("schema-mismatch", error.message, field=error.json_path)


def problem_of(error: StoreError) -> Problem:
    """Log an error of the store, and return the problem for it. Only the log has its text, which may name the place."""
    logger.warning(
        "store refuses requests: %s", one_line(str(error)), extra={"event": DATABASE_UNAVAILABLE, "code": error.code}
    )
    match error:
        case CommitUnknown():
            return Problem("outcome-unknown", "the commit's answer was lost")
        case StoreContention():
            return Problem("store-busy", "another transaction holds the store, or the id")
        case StoreExhausted():
            return Problem("store-full", "the store's disk or memory is full")
        case StoreRefused():
            return Problem("store-refused", "the store refuses this content at every attempt")
        case _:
            return Problem("store-unavailable", "the store does not answer")


def _message(route: BoundRoute, body: Body, attributes: tuple[tuple[str, str], ...]) -> Any:
    if route.is_delivery:
        return Posted(body.raw, dict(attributes))
    try:
        return codec.decode(body.raw, route.type)
    except Undecodable as error:
        raise Problem("message-invalid", str(error), field=_field_of(str(error))) from error


def _field_of(text: str) -> str | None:
    """Return the path in an error of msgspec, such as ``$.amount``."""
    _, found, path = text.rpartition("at `")
    return path.rstrip("`") if found else None


def _answer(item: Item, wanted: Acceptance, outcome: Outcome) -> Answer:
    if isinstance(outcome, StoreError):
        return problem_of(outcome)
    if isinstance(outcome, Exception):
        raise outcome
    if outcome.outcome == "started":
        return Receipt(item.theirs, wanted.key, "accepted", wanted.digest)
    return _known(item, wanted, outcome.digest)


def _known(item: Item, wanted: Acceptance, accepted_digest: str) -> Answer:
    if accepted_digest == wanted.digest:
        return Receipt(item.theirs, wanted.key, "duplicate", wanted.digest)
    return Problem(
        "id-conflict",
        f"the id {item.theirs!r:.220} was accepted before, with a body of digest {accepted_digest:.16}…; this body has "
        f"{wanted.digest:.16}…",
    )
