"""PostgreSQL: the store for production. The user's tables and Stagepost's are in one database, and one commit covers
both.

Facts that shaped this package (each has a test):

* a *round trip* costs more than a statement. A statement without an answer waits for the next one that has an answer,
  and all of them go together (``statement_pipeline``), with the transaction's begin and its commit;
* a handler gets a *guarded* connection, as on SQLite, because ``commit``, ``with connection`` and SQL that commits
  would end the stage's transaction;
* a COMMIT of a transaction that had failed is answered by ROLLBACK, and without an error.
"""
