"""Consumer groups: the classic protocol, committed offsets, and the positions of changefeeds."""
