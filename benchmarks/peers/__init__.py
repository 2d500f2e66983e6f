"""Other systems to compare with: each trains the same model in a virtual environment of its own."""
