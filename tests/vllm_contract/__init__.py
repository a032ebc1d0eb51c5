"""Scans forerun for private names of other libraries, and renames those that the contract lists."""
