"""The agent: one torch-free supervisor per instance, which watches its worker and its peers."""
