"""How the rows of a changefeed reach their target once: positions, take-over, writing, and the packing of rounds."""
