"""Benchmarks that measure ratios in one run: ``make bench``. Tests check the figures that do not depend on the load."""
