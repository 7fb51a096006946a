"""Connections to brokers: in memory, and RabbitMQ. Of Stagepost, it imports ``ports`` and ``flow`` alone."""
