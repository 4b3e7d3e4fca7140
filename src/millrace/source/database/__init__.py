"""The database as it stands: connections, catalogue, what a source makes there, what guards it, what repairs it."""
