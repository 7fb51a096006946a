"""A broker with several hosts: they are tried in turn, and rounds are separated by a growing delay with jitter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random

from stagepost.broker.url import BrokerUrl, Host
from stagepost.flow.clock import Clock
from stagepost.flow.errors import BrokerDenied, BrokerUnavailable
from stagepost.flow.texts import as_sentence
from stagepost.ports.broker import BrokerConnection

FIRST_SECONDS = 0.2
FACTOR = 2.0
CAP_SECONDS = 30.0
# Each delay is longer by up to this part of it. So processes that lost the same broker do not come back together.
JITTER = 0.5
# The time for one host. A host that swallows all packets must not use up the time of the others.
HOST_SECONDS = 5.0


class FailoverBroker:
    """Implements ``Broker``. Any thread may connect.

    ``open_host``  opens a connection to one host within some seconds. It raises ``BrokerUnavailable`` where another try
                   may help, and ``BrokerDenied`` where it cannot.
    """

    def __init__(
        self,
        url: BrokerUrl,
        open_host: Callable[[Host, float], BrokerConnection],
        clock: Clock,
        random: Random,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = url
        self._open_host = open_host
        self._clock = clock
        self._random = random
        self._sleep = sleep
        # Guards what follows.
        self._lock = threading.Lock()
        # The host that answered last comes first: most losses are losses of a connection, and not of a host.
        self._first = 0
        self._failed_rounds = 0
        self._next_round_at = clock.monotonic()
        self._reasons = "none was tried yet"

    @property
    def url(self) -> str:
        return self._url.shown

    def connect(self, seconds: float) -> BrokerConnection:
        deadline = self._clock.monotonic() + seconds
        while True:
            now = self._clock.monotonic()
            with self._lock:
                next_round_at, reasons = self._next_round_at, self._reasons
            if next_round_at > deadline:
                self._sleep(max(0.0, deadline - now))
                raise BrokerUnavailable(
                    f"no host of the broker {self.url} answers: {as_sentence(reasons)} "
                    "Start the broker, or correct the URL."
                )
            self._sleep(max(0.0, next_round_at - now))
            connection = self._round()
            if connection is not None:
                return connection

    def _round(self) -> BrokerConnection | None:
        """Try each host once. Raises ``BrokerDenied`` if each of them denies."""
        reasons = []
        denials: list[BrokerDenied] = []
        hosts = self._url.hosts
        first = self._first
        for index in (*range(first, len(hosts)), *range(first)):
            try:
                connection = self._open_host(hosts[index], HOST_SECONDS)
            except BrokerUnavailable as error:
                reasons.append(f"{hosts[index]} ({error})")
                continue
            except BrokerDenied as error:
                # Another host may know the user, or have another certificate.
                denials.append(error)
                reasons.append(f"{hosts[index]} ({error})")
                continue
            with self._lock:
                self._first = index
                self._failed_rounds = 0
                # A broker that accepts connections and drops them at once is not asked in a tight loop.
                self._next_round_at = self._clock.monotonic() + FIRST_SECONDS
            return connection
        if len(denials) == len(hosts):
            raise denials[0]
        with self._lock:
            self._failed_rounds += 1
            self._reasons = ", ".join(reasons)
            self._next_round_at = self._clock.monotonic() + self._delay()
        return None

    def _delay(self) -> float:
        # The cap is reached long before this power overflows.
        delay = min(FIRST_SECONDS * FACTOR ** min(self._failed_rounds - 1, 20), CAP_SECONDS)
        return delay * (1 + JITTER * self._random.random())
