"""Machinery that tests share."""
