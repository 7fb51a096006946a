"""Stages whose data is a document, in a store whose only transaction is the write of one document.

accounts = RedisDocuments("redis://localhost")

@app.endpoint("accounts.book")
@in_document(accounts, key="account:{account}", ids="processed")
def book(ctx: Context, booking: Booking) -> None:
    ctx.document["balance"] = ctx.document.get("balance", 0) + booking.cents

``stagepost.store.document.redis`` has ``RedisDocuments``, and needs the extra ``redis``.
"""

from stagepost.ports.documents import DocumentStore, StoredDocument
from stagepost.store.document.memory import MemoryDocuments
from stagepost.transaction.document_rules import in_document

__all__ = ["DocumentStore", "MemoryDocuments", "StoredDocument", "in_document"]
