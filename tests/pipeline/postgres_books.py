"""The shop in PostgreSQL: in one database, or with its messages in another one than its ledger."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost import App
from stagepost.transaction.stage import Mode
from tests.books import InPostgres, InTwo
from tests.pipeline.books import Books, Flow
from tests.pipeline.shop import open_shop


class PostgresBooks(InPostgres, Books):
    def __init__(self, url: str) -> None:
        InPostgres.__init__(self, url)
        Books.__init__(self)

    def proofs_of_life(self) -> Sequence[object]:
        return self.rows("SELECT owner FROM stagepost_incarnation")

    def in_doubt(self) -> int:
        return self.number("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")


class PostgresInTwo(InTwo, Books):
    queue: PostgresBooks

    def __init__(self, business: PostgresBooks, queue: PostgresBooks, mode: Mode) -> None:
        InTwo.__init__(self, business, queue)
        self.mode = mode
        Books.__init__(self)

    @property
    def app(self) -> App:
        return open_shop(self.url, queue=self.queue.url, mode=self.mode, pause_after_death=None)

    def proofs_of_life(self) -> Sequence[object]:
        return self.queue.proofs_of_life()

    def problems(self, flows: Sequence[Flow]) -> list[str]:
        unmarked = self.number("SELECT count(*) FROM stagepost_inbox WHERE NOT is_sent")
        in_doubt = self.queue.in_doubt()
        return [
            *super().problems(flows),
            *([f"inbox: {unmarked} messages were handled and are not marked as sent"] if unmarked else []),
            *([f"in doubt: {in_doubt} transactions"] if in_doubt else []),
        ]
