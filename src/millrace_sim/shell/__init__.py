"""The shell world: whole brokers and clients that speak Kafka, on the virtual loop, under a seed's faults."""
