"""Moves messages: dead letters, forwarding of topic rows, and replacement by a successor."""
