"""Hugging Face models as lists of layers, by the code of transformers itself."""
