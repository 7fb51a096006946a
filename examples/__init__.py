"""Examples that run from the project's folder."""
