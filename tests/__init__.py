"""Tests; the folders mirror `src/millrace/`."""
