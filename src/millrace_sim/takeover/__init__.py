"""Dispatchers that write to Kafka topics on our own log, in one process, under seeded faults [V11, K3, K5, P2-P9].

The protocol is decided by the product's own machines (core.positions, core.takeover, core.writing, core.producers);
what surrounds them is a model: partitions with a high watermark and fail-over, captures that crash and pause, Spark
tasks that outlive them, a network that loses, delays and repeats. One seed is one run. After the faults the world
heals, must become quiet, and then the logs must hold each row once.
"""
