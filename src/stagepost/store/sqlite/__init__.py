"""SQLite: the embedded default. One file holds the user's tables and Stagepost's, and one commit covers both.

Facts that shaped this package (each has a test):

* writers queue at a *writer lock*, because SQLite's own busy handler starves all but one of them;
* a handler gets a *guarded* connection, because ``commit``, ``with connection`` and ``executescript`` would end the
  stage's transaction, and ``ON CONFLICT ROLLBACK`` does;
* the file is never opened by anything but Python's own ``sqlite3``: closing any other descriptor of it drops this
  process's locks, and committed rows vanish.
"""
