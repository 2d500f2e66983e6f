"""The facts of a model's layers, how they are cut into stages, and the bytes of each stage."""
