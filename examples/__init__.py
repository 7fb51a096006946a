"""Examples, runnable from the project's folder."""
