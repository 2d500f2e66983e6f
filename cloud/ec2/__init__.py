"""EC2: requests as pure values, the provider that sends them, and what an instance sees."""
