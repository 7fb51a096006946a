"""The database: inbox, outbox, queue, journal, dead letters, in the same place as the user's own data.

One room a database. SQL and drivers live here and nowhere else, one ``.sql`` file a statement; stores never import
each other, and nothing outside knows more of one than the protocols in ``ports``.
"""
