"""The producer: it sends each order until it has its 200, under one id, whatever happens on the way."""

from __future__ import annotations

import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from threading import Event

THREADS = 4
PAUSE_SECONDS = 0.1
# The producer waits for an answer for this time.
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Producer:
    """A producer of orders 0, 1, 2, ….

    ``has_new_ids``   each retry has a new id
    ``is_deaf``       it sends each order once, and looks at no answer
    """

    port: int
    has_new_ids: bool = False
    is_deaf: bool = False

    def send(self, count: int, halves: Event, deadline: float) -> int:
        """Send the orders, and return how many times one was sent. ``halves`` is set when half of them are."""

        def one(number: int) -> int:
            if number == count // 2:
                halves.set()
            return self._send_one(number, deadline)

        with ThreadPoolExecutor(THREADS) as threads:
            return sum(threads.map(one, range(count)))

    def _send_one(self, number: int, deadline: float) -> int:
        message_id = f"order-{number}"
        for attempt in range(1, 1_000_000):
            # The network loses the answer to the first request of some orders.
            is_answer_lost = attempt == 1 and number % 3 == 0
            if self._post(number, message_id, is_answer_lost=is_answer_lost) or self.is_deaf:
                return attempt
            if time.monotonic() > deadline:
                raise TimeoutError(f"order {number} was not accepted in time")
            if self.has_new_ids:
                message_id = str(uuid.uuid4())
            time.sleep(PAUSE_SECONDS)
        raise AssertionError("the loop ends by its deadline")

    def _post(self, number: int, message_id: str, *, is_answer_lost: bool) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request(
                "POST",
                "/orders",
                json.dumps({"number": number}),
                {"Content-Type": "application/json", "Message-Id": message_id},
            )
            answer = connection.getresponse()
            answer.read()
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
        return answer.status == 200 and not is_answer_lost
