"""Why layers need the precision: from one FP32 run, beside what the emulator makes of it."""
