"""The contract of every store of documents. Run it against your own:

from stagepost.testing.contract.documents import DocumentsContract

class TestMyDocuments(DocumentsContract):
    @pytest.fixture
    def documents(self) -> DocumentStore:      # empty, and new for each test
        return MyDocuments(...)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from stagepost.ports.documents import DocumentStore, StoredDocument

WRITERS = 4
BYTES = bytes(range(256))


class DocumentsContract:
    """Provide ``documents``."""

    def test_a_missing_document_has_version_zero_and_no_content(self, documents: DocumentStore) -> None:
        assert documents.read("a") == StoredDocument(0, b"")

    def test_each_write_raises_the_version_by_one_and_keeps_every_byte(self, documents: DocumentStore) -> None:
        assert documents.write("a", BYTES, 0)
        assert documents.read("a") == StoredDocument(1, BYTES)
        assert documents.write("a", b"", 1)
        assert documents.read("a") == StoredDocument(2, b"")

    def test_a_write_on_another_version_changes_nothing(self, documents: DocumentStore) -> None:
        assert documents.write("a", b"first", 0)
        for version in (0, 2):
            assert not documents.write("a", b"second", version)
        assert documents.read("a") == StoredDocument(1, b"first")

    def test_a_write_of_the_same_content_raises_the_version_too(self, documents: DocumentStore) -> None:
        """A fence is such a write."""
        documents.write("a", b"same", 0)
        assert documents.write("a", b"same", 1)
        assert not documents.write("a", b"late", 1)

    def test_of_writers_at_once_one_succeeds(self, documents: DocumentStore) -> None:
        barrier = Barrier(WRITERS)

        def write(number: int) -> bool:
            barrier.wait()
            return documents.write("a", str(number).encode(), 0)

        with ThreadPoolExecutor(WRITERS) as pool:
            assert sorted(pool.map(write, range(WRITERS))) == [False] * (WRITERS - 1) + [True]
        assert documents.read("a").version == 1

    def test_documents_of_other_keys_are_apart(self, documents: DocumentStore) -> None:
        documents.write("a", b"a", 0)
        documents.keep("a", "list", b"1")
        assert documents.read("b") == StoredDocument(0, b"")
        assert documents.lists("b") == {}

    def test_a_list_is_never_overwritten(self, documents: DocumentStore) -> None:
        assert documents.keep("a", "1 pay m1", BYTES)
        assert not documents.keep("a", "1 pay m1", b"other")
        assert documents.keep("a", "2 pay m1", b"second")
        assert documents.lists("a") == {"1 pay m1": BYTES, "2 pay m1": b"second"}

    def test_a_list_is_dropped_by_its_own_name(self, documents: DocumentStore) -> None:
        documents.keep("a", "1 pay m1", b"first")
        documents.keep("a", "2 pay ü", b"second")
        documents.drop("a", "1 pay m1")
        documents.drop("a", "1 pay m1")
        assert documents.lists("a") == {"2 pay ü": b"second"}
        documents.drop("a", "2 pay ü")
        assert documents.lists("a") == {}
        documents.drop("missing", "1 pay m1")

    def test_lists_and_document_are_changed_apart(self, documents: DocumentStore) -> None:
        documents.keep("a", "1 pay m1", b"list")
        assert documents.read("a") == StoredDocument(0, b"")
        assert documents.write("a", b"body", 0)
        assert documents.lists("a") == {"1 pay m1": b"list"}
