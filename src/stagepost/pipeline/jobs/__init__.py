"""The edges: what reads stores and files, writes to stores, and collects summaries."""
