"""Log files: a broker's data directory. See README.md."""
