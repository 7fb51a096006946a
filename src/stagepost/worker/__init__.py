"""Run stages on the threads and processes of one machine.

A *supervisor* starts worker processes, replaces those that die, and runs suspects alone. Each worker *process* is an
incarnation with a number of stage threads, which take what the process claimed ahead, its *prefetcher*.
"""
