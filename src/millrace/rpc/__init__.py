"""Calls between processes: codecs and client transports. Input from outside is always validated."""
