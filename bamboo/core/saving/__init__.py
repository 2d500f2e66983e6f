"""When state is stored: periodic checkpoints, and emergencies that notices bring about."""
