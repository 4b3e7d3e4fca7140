"""The mover of the Kafka sink on our own log: reads a table's topic, encodes, writes target topics, inside a task."""
