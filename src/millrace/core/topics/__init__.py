"""Topics, subscriptions and filter policies."""
