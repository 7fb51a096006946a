"""The stores of documents pass their contract: the one in memory, and a real Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost.flow.errors import StoreError, StoreUnavailable
from stagepost.ports.documents import DocumentStore, StoredDocument
from stagepost.store.document import MemoryDocuments
from stagepost.store.document.redis import RedisDocuments
from stagepost.testing.contract.documents import DocumentsContract
from tests.servers.redis import DURABLE, RedisServer


class TestMemoryDocuments(DocumentsContract):
    @pytest.fixture
    def documents(self) -> DocumentStore:
        return MemoryDocuments()


class TestRedisDocuments(DocumentsContract):
    @pytest.fixture
    def documents(self, redis_server: RedisServer) -> DocumentStore:
        redis_server.clear()
        return RedisDocuments(redis_server.url)

    def test_documents_and_lists_survive_the_death_of_the_server(
        self, tmp_path: Path, redis_server: RedisServer
    ) -> None:
        server = RedisServer(tmp_path / "mortal")
        server.start()
        try:
            documents = RedisDocuments(server.url)
            documents.write("a", b"body", 0)
            documents.keep("a", "1 pay m1", b"list")
            server.kill()
            with pytest.raises(StoreUnavailable, match=f"redis://127.0.0.1:{server.port}/0 does not answer"):
                documents.read("a")
            server.start()
            assert documents.read("a") == StoredDocument(1, b"body")
            assert documents.lists("a") == {"1 pay m1": b"list"}
        finally:
            server.stop()

    @pytest.mark.parametrize(
        ("index", "value"),
        [(1, "no"), (3, "everysec"), (5, "allkeys-lru")],
        ids=["appendonly", "appendfsync", "eviction"],
    )
    def test_a_server_that_forgets_writes_is_refused(
        self, index: int, value: str, tmp_path: Path, redis_server: RedisServer
    ) -> None:
        server = RedisServer(tmp_path / "forgetful")
        server.start((*DURABLE[:index], value, *DURABLE[index + 1 :]))
        try:
            name = DURABLE[index - 1].removeprefix("--")
            with pytest.raises(StoreUnavailable, match=f"has {name} {value}.*Set {name} {DURABLE[index]}"):
                RedisDocuments(server.url).read("a")
            assert RedisDocuments(server.url, is_checked=False).read("a") == StoredDocument(0, b"")
        finally:
            server.stop()

    def test_a_key_that_something_else_uses_is_an_error_of_the_store(
        self, documents: DocumentStore, redis_server: RedisServer
    ) -> None:
        redis_server.client().set("text", "x")
        with pytest.raises(StoreError, match="refused a command"):
            documents.read("text")
