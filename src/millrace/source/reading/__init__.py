"""The stream of changes into the log: one life of a reader, from its fence to its marks."""
