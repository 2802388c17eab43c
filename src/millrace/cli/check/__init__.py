"""`millrace check`: verifies a folder; the reading runs in a child process.

LMDB trusts its pages and the kernel its disk: on damage, either may kill the process that reads.
The parent sees the signal, and continues with the phases that do not need the damaged part.
"""
