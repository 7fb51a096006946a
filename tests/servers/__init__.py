"""Real servers for the tests: those that the environment names, or those that are started here, and stopped again."""
