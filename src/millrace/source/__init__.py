"""Sources: databases whose every committed change goes into the log."""
