"""`millrace dump`: shows the contents of a folder, offline and without changing it."""
