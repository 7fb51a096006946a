"""The reading side: what happened to a flow, what waits, who works. It never writes."""
