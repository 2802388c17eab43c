"""Runs of pipelines that are killed at any moment."""
