"""ActiveMQ over STOMP 1.2: a codec without I/O, and the blocking connection on it."""
