"""The side of the resource: each module refuses a stale fencing token where the data lives."""
