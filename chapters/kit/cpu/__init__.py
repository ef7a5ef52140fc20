"""CPU schedules and tensor intrinsics: tiles in registers, vectors, parallel rows, VNNI, AMX, streaming stores."""
