"""A pool of ten connections starves because of a callback after the commit that waits for a broker.

``python -m examples.slow_callbacks DATABASE BROKER BROKER_PID`` runs 25 callers on ten connections, and stops the
broker with SIGSTOP meanwhile: once with a send after the commit, and once with Stagepost.
"""
