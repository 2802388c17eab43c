"""SNS, spoken as its clients expect it."""
