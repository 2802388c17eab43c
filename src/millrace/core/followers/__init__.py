"""Followers: cursors, snapshots and pins."""
