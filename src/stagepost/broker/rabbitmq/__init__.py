"""RabbitMQ, by AMQP 0-9-1 and py-amqp."""
