"""A campaign of faults over two services that talk over a broker: ``make soak BROKER=rabbitmq``, or ``activemq``."""
