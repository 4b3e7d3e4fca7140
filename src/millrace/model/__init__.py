"""Nouns of the product. Frozen values; nothing here decides, waits or touches the world."""
