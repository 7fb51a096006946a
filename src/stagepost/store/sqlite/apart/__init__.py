"""The tables of the second file, beside the store's own: see ``store.sqlite.second_file``."""
