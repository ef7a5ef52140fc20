"""Reading and rewriting IR: visitors, differences, the sites and domains of blocks, effects."""
