"""The work of `millrace check`, which runs in a process of its own.

LMDB trusts its pages and the kernel its disk: on damage, either may end the process that reads. The
parent then knows by which signal, and goes on with what does not need the damaged part.
"""
