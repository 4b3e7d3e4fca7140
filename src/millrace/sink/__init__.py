"""Sinks: where the rows of a changefeed go."""
