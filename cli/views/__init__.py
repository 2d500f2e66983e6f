"""What a person sees, as pure functions from values to text or a renderable."""
