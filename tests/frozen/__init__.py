"""What users, their programs and their data depend on, as golden files."""
