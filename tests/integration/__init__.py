"""The real server, met by unchanged clients of AWS, each in an environment of its own."""
