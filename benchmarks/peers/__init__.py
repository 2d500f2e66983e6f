"""Other systems beside ours: each trains the same model in a virtual environment of its own."""
