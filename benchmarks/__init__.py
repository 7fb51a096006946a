"""Ratios, measured side by side in one run: ``make bench``. Not tests; what does not depend on the machine's mood is
gated there."""
