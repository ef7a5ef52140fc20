"""The course: lessons, labs and the files a learner edits. `python -m chapters` is the learner's command."""
