"""Transcripts: commands as text in, answers and changes as text out."""
