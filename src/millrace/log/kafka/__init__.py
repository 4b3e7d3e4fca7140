"""The Kafka port: what unmodified Kafka clients speak to a broker. See README.md."""
