"""Files to Arrow tables."""
