"""Links: one connection per ordered pair of processes, with control calls and replication streams on it."""
