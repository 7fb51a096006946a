"""The edge: requests from processes that run no stages, and their replies."""
