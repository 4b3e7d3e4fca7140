"""millrace: every PostgreSQL change in Kafka topics and in lake tables, exactly once."""

__version__ = "0.1.0"
