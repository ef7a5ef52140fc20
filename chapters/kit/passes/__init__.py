"""Passes that rewrite a module around the learner's, replacements for faulty ones of TVM, and memory plans.

A pass's name is a verb, and so is its file's.
"""
