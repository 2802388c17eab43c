"""Parsers of bodies into typed columns: JSON, Avro or Arrow.

Rule 1: a body that does not match the schema is preserved in the column `_corrupt`; its row has
nulls in the typed columns. One bad body fails nothing.

Rule 2: a delete has no body: all of its typed columns are null, and so is `_corrupt`.
"""
