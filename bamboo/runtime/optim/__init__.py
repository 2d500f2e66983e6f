"""What an optimizer keeps of each parameter."""
