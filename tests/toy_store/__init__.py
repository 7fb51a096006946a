"""A whole store in memory, written from ``stagepost.ports`` alone and registered as another package would do it.

It keeps nothing, speaks no SQL, and is as strict as the others: one writer at a time, and a transaction that is rolled
back, or whose owner "dies", leaves nothing behind. It is the oracle of the comparison, and the world of the simulation.
"""
