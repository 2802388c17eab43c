"""Backends: what a cluster needs of an existing distributed system, and adapters to such systems.

`registry`, `loglets` and `blobs` are the ports that the cluster uses. An object store serves all
three through six operations (`objects`): `object_registry`, `object_loglets` and `object_blobs`
are the same for every object store; `file_objects` is a store in a folder.
"""
