"""What becomes of a table's rows between the log and the encoder."""
