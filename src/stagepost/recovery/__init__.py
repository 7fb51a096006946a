"""Recovery of failed messages: redelivery by policy, dead letters with their causes, and replay on request."""
