"""The verbs that work through the public API, a module for each verb or family of verbs."""
