"""Shared parts of all HTTP APIs: routing, request context, errors, OpenAPI, request audit."""
