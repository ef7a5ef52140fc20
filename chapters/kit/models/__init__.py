"""Models that others wrote: from PyTorch to a graph in the forms that the course's passes look for."""
