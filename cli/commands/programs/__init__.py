"""Commands that programs call, and people do not."""
