"""PostgreSQL: the store for production. The user's tables and Stagepost's are in one database, and one commit covers
both.

What shaped this room (each has a test):

* a *round trip* costs more than a statement: what needs no answer waits for the next statement that does, and all of it
  goes in one flight (``statement_pipeline``), the transaction's begin and its commit included;
* a handler gets a *guarded* connection, as on SQLite, because ``commit``, ``with connection`` and SQL that commits
would
  end the stage's transaction;
* a COMMIT of a transaction that had failed is answered by ROLLBACK, and without an error.
"""
