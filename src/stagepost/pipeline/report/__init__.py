"""The result of an audit: its figures, the advice that follows from them, and its page. Nothing here uses Spark."""
