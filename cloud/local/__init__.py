"""The local cloud: the production EC2 code against a mock AWS whose instances are processes."""
