"""What the checks of all chapters share: what they ask of an answer, and how they run its kernels."""
