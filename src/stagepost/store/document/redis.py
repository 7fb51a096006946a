"""A store of documents in Redis, of the extra ``redis``.

A document is a hash at its key: ``version`` and ``body``. Its lists are a hash at the key with ``:outgoing`` behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from stagepost.flow.errors import StoreError, StoreUnavailable
from stagepost.flow.urls import shown_url
from stagepost.ports.documents import StoredDocument

# A script runs alone in the server, so it compares and writes as one operation.
WRITE = """
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if version ~= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'version', version + 1, 'body', ARGV[2])
return 1
"""
# Without these settings the server forgets acknowledged writes in a crash, or evicts documents.
NEEDED = {"appendonly": ("yes",), "appendfsync": ("always",), "maxmemory-policy": ("noeviction",)}
TIMEOUT_SECONDS = 10.0


class RedisDocuments:
    """Implements ``DocumentStore``. ``url`` is such as ``redis://:password@host:6379/0``.

    At its first use it checks that the server keeps acknowledged writes: ``appendonly yes``, ``appendfsync always`` and
    ``maxmemory-policy noeviction``. ``is_checked=False`` leaves the check out, for a server that refuses CONFIG and
    has these settings. Raises ``StoreUnavailable`` if a setting is another one.
    """

    def __init__(self, url: str, *, is_checked: bool = True, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.url = shown_url(url)
        # The client repeats nothing: a repeated write cannot tell its own first try from another writer's.
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), 0),
        )
        self._write = self._client.register_script(WRITE)
        self._is_checked = not is_checked

    def read(self, key: str) -> StoredDocument:
        with self._answered() as client:
            version, body = cast("list[bytes | None]", client.hmget(key, ["version", "body"]))
            return StoredDocument(int(version or 0), body or b"")

    def write(self, key: str, body: bytes, version: int) -> bool:
        with self._answered():
            return bool(self._write(keys=[key], args=[version, body]))

    def keep(self, key: str, name: str, content: bytes) -> bool:
        with self._answered() as client:
            return bool(client.hsetnx(_outgoing(key), name, cast("Any", content)))

    def lists(self, key: str) -> Mapping[str, bytes]:
        with self._answered() as client:
            found = cast("dict[bytes, bytes]", client.hgetall(_outgoing(key)))
            return {name.decode(): content for name, content in found.items()}

    def drop(self, key: str, name: str) -> None:
        with self._answered() as client:
            client.hdel(_outgoing(key), name)

    @contextmanager
    def _answered(self) -> Iterator[redis.Redis]:
        """Yield the client, and raise its errors as those of a store."""
        try:
            if not self._is_checked:
                self._check()
            yield self._client
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError) as error:
            raise StoreUnavailable(f"{self.url} does not answer: {error}") from error
        except redis.RedisError as error:
            raise StoreError(f"{self.url} refused a command: {error}") from error

    def _check(self) -> None:
        try:
            found = cast("dict[str, str]", self._client.config_get(*NEEDED))
        except redis.ResponseError as error:
            raise StoreUnavailable(
                f"{self.url} does not tell its settings ({error}). Documents need "
                f"{', '.join(f'{name} {values[0]}' for name, values in NEEDED.items())}. Give "
                "RedisDocuments(…, is_checked=False) if the server has them."
            ) from error
        for name, values in NEEDED.items():
            if found.get(name) not in values:
                raise StoreUnavailable(
                    f"{self.url} has {name} {found.get(name)}, and would forget documents that it acknowledged. Set "
                    f"{name} {values[0]}."
                )
        self._is_checked = True


def _outgoing(key: str) -> str:
    return f"{key}:outgoing"
