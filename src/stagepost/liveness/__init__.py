"""Detect which worker incarnations are alive, and take over from those that are not.

Claims belong to incarnations, not to messages, so a stage may take as long as its time limit. ``ports.liveness``
describes the record of an incarnation, and each store keeps it.
"""
