"""Programs to fuse, and ways to run them that see every wrong number and every write out of bounds."""
