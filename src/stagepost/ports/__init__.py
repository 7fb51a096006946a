"""The duties of a store: one protocol a file, with its row types as plain data.

Mandatory are the store, its sessions, queue, journal, accepted ids, dead letters and liveness. All else is a capability
that a store may lack. ``stagepost.testing.contract`` holds the suites that a store must pass.
"""
