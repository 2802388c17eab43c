"""Contract suites: what every implementation of a port must do."""
