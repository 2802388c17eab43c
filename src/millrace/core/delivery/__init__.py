"""Delivery: leases, settlement, redelivery, dead-letter decisions, sessions and quarantine."""
