"""The stage transaction, written once, which workers, Spark tasks and the simulator run."""
