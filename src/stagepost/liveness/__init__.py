"""Who is alive, and what becomes of the work of those who are not.

Leases belong to worker *incarnations*, a process start or one Spark task attempt, and not to messages: a stage may take
as long as its time limit. An incarnation proves that it lives by a lock that the system frees when it dies, and that it
is not paused by a heartbeat; its record names what it runs at the moment, so that only that counts as a death.
"""
