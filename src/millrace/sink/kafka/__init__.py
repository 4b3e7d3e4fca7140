"""Kafka topics: messages in the formats people know, with headers that make a take-over exact."""
