"""The statements that SQLite and PostgreSQL share, and one wrapper a capability that runs them."""
