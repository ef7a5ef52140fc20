"""The course: lessons, labs and the files a learner edits. `python -m chapters` is the learner's command."""

import os

from chapters.environment import refuse_to_start

refuse_to_start()  # before the imports that follow

from chapters import quick_stack, quick_tvm
from chapters.opened import OPENED, note_opened_files

quick_stack.install()
quick_tvm.install()
if OPENED in os.environ:
    note_opened_files()
