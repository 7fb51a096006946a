"""The edge: where a process that runs no stages asks for something, and gets the reply."""
