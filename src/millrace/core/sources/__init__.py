"""What a source decides: its reader, its tables, copies and their windows."""
