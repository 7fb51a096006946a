"""Jobs from a table, each handed out once, whatever fails."""
