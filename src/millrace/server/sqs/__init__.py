"""SQS, spoken as its clients expect it."""
