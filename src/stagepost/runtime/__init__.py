"""The loop around the transaction, and the threads that keep it going: prefetch, housekeeper, relay, isolation."""
