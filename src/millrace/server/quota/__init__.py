"""Quotas of users: rates of requests and bytes, and bounds on what they hold in flight."""
