"""The document store: its table, the search, and the two databases that it can be in. Knows nothing of callers."""
