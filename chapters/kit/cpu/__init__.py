"""Schedules and tensor intrinsics for CPUs: tiles that fit registers, vectors, rows in parallel, VNNI, AMX, streaming stores."""
