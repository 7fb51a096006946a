"""A store in memory: a second, independent answer to every question the contract suite asks, and the simulator's world.

It keeps nothing, speaks no SQL, and is as strict as the others: one writer at a time, and a transaction that is rolled
back, or whose owner "dies", leaves nothing behind.
"""
