"""What a run's instances were there for, what they cost, and the receipt that says so."""
