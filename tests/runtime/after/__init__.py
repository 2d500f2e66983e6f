"""What was trained, used."""
