"""The reading side: the history of a flow, the waiting messages, the workers. It never writes."""
