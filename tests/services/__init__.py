"""Other people's servers, real ones, for the tests of what speaks to them.

Each is fetched once (`make services`), started on a free port of loopback in a temporary folder,
waited for by asking it, and ended by its pid. `kill` and `start` are for tests of what survives:
the port and the folder stay the same. Nothing outlives the tests, not even those that are killed.
"""
