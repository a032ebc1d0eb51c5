"""Do two servers say the same tokens? At temperature 0, and with seeds."""
