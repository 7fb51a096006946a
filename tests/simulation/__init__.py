"""The very transaction that workers run, over a store in memory, on a clock that stands still, under every fault there
is: thousands of histories a minute, each of them replayed by its seed."""
