"""The migrations of the fence table."""
