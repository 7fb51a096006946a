"""The heart: one stage transaction, step by step, written once and driven by everything that runs stages."""
