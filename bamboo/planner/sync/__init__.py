"""What each way to synchronise a parameter costs, and which way suits it."""
