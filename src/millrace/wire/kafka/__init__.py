"""The Kafka protocol: message tables, a codec that reads them, and hand-written code for what every record passes."""
