"""The edges: jobs that read stores and files, write to stores, and collect summaries."""
