"""Programs to fuse, and a way to run them that detects wrong numbers and writes out of bounds."""
