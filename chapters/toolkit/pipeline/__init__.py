"""Around whole pipelines: traces, scoreboards, memory plans, and TVM's passes where they need a guard."""
