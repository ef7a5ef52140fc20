"""Checks of the built site."""
