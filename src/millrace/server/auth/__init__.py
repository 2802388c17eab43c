"""Authentication, authorization and the audit log of a server."""
