"""Hand out the jobs of a table, each once, whatever fails."""
