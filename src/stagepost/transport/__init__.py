"""What carries envelopes. The database itself is the default; a broker is another room here."""
