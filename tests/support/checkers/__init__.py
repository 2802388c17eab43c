"""Checkers: what clients saw in a simulated run must be what a queue promises."""
