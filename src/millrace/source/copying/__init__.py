"""Copies of tables into topics of their own, chunk by chunk, in processes beside the stream."""
