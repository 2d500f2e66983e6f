"""The decision core under fault orders that no real run would meet, played from seeds."""
