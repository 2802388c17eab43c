"""The native REST API: requests, responses and the OpenAPI document of both."""
