"""The course: lessons, labs and the files a learner edits. `python -m chapters` is the learner's command."""

import os

from chapters.environment import refuse_to_start

refuse_to_start()  # before the imports that follow

from chapters.opened import OPENED, note_opened_files

if OPENED in os.environ:
    note_opened_files()
