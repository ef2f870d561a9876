"""What `sluice batch` does besides asking: reads input, waits, shows progress, saves answers."""
