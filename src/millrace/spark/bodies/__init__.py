"""Bodies as typed columns: JSON, Avro or Arrow.

Rule 1: a body that is not of the schema is kept aside, whole, in the column `_corrupt`; its row is
there, with nulls in the typed columns. Nothing fails because of one bad body.
Rule 2: a delete has no body: all of its typed columns are null, and so is `_corrupt`.
"""
