"""Careless stages that ``crash_everywhere`` catches, each with its cure."""
