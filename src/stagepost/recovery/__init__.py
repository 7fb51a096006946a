"""What happens to a message that failed: redelivered by policy, dead-lettered with its cause, replayed on request."""
