"""The server: front ends over one engine."""
