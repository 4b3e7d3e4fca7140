"""Chunks of copies on Spark: what sends them there, what runs them, what is heard of them meanwhile."""
