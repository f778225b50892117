"""What the machine has: threads, memory, disks, GPU, signals, folders of this process."""
