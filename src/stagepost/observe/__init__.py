"""Read the history of a flow, the waiting messages, and the workers. This package never writes to the store."""
