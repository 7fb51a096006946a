"""One flow with five classic mistakes, each with its cure, and the count of its damage."""
