"""The server side of calls between processes: sessions, authorization and audit of calls."""
