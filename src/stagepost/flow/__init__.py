"""Flows: envelopes with their call stack and ids, the codec, and the context that a handler gets."""
