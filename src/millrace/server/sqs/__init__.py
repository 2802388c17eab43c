"""The SQS front end: requests and responses as AWS clients expect them."""
