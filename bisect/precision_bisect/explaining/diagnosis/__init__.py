"""Why layers need the high type: read off one FP32 run and off the emulator."""
