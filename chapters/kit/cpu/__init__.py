"""Schedules and tensor intrinsics for CPUs: tiles that fit registers, VNNI, AMX, streaming stores."""
