"""Ratios, measured side by side in one run: ``make bench``. The tests hold figures that do not depend on the load."""
