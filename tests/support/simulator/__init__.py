"""The simulator: the shipped engine over a simulated machine, from a seed."""
