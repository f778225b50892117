"""The emulator: plans predicted on any machine, one inference each."""
