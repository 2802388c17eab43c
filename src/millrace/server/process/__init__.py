"""A running server: settings, front-end processes, TLS, metrics export, start and stop."""
