"""The store for production: PostgreSQL. One database holds the user's tables and Stagepost's, and one commit covers
both.

Facts that shaped this package (each has a test):

* A *round trip* costs more than a statement. So a statement whose result is not needed waits for the next one whose
  result is. ``statement_pipeline`` sends them together, with BEGIN and COMMIT.
* A handler gets a *guarded* connection, as on SQLite. It refuses ``commit``, ``with connection`` and SQL that commits,
  which would end the stage's transaction.
* PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, and without an error.
"""
