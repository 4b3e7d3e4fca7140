"""Shells of the machines in core/feeds: messages, offices, time; see README.md."""
